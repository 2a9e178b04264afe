"""Turns of conversations as two servers took them: medians, a table, and what they mean."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks import report
from benchmarks.client import Reply

COLD = "cold"
WARM = "warm turn"
TITLE = "title, on the side"
AFTER = "turn after the title"
ALONE = "a warm turn's new tokens, alone"
FIRST = "first turn, system prompt shared"
SECOND = "second turn, in rotation"
BACK = "turn after all of these"
DISK = "turn after a restart, from disk"


@dataclass(frozen=True, slots=True)
class Sample:
    """One turn of one conversation: the replies of duo and of llama-server. restore_ms: what llama-server
    spent on loading the saved conversation, which is added to its time."""

    scenario: str
    history: int
    turns: tuple[Reply, ...]
    restore_ms: float = 0.0

    @property
    def ms(self) -> tuple[float, ...]:
        """Milliseconds from the request to the first text, of each server."""
        ours, theirs = (turn.first_ms for turn in self.turns)
        return ours, theirs + self.restore_ms


@dataclass(frozen=True, slots=True)
class Row:
    """Medians over the samples of a scenario with this history. ratio: of duo's time to llama-server's.
    n_prompt: duo's."""

    scenario: str
    history: int
    n_prompt: int
    ms: tuple[float, ...]
    ratio: float
    n_cached: tuple[int, ...]
    restore_ms: float

    @property
    def name(self) -> str:
        return f"{self.scenario}, {self.history}"


def line(sample: Sample) -> str:
    pairs = zip(sample.ms, sample.turns, strict=True)
    parts = [f"{ms:8.1f} ms ({turn.n_cached} of {turn.n_prompt} cached)" for ms, turn in pairs]
    return f"{sample.history:5} {sample.scenario:33}: {' | '.join(parts)}"


def summarize(samples: Sequence[Sample]) -> list[Row]:
    """Pure. Scenarios in the order in which they first occur, each by history."""
    found: dict[tuple[str, int], list[Sample]] = {}
    for sample in samples:
        found.setdefault((sample.scenario, sample.history), []).append(sample)
    order = list(dict.fromkeys(scenario for scenario, _ in found))
    keys = sorted(found, key=lambda key: (order.index(key[0]), key[1]))
    return [_row(scenario, history, found[scenario, history]) for scenario, history in keys]


def _row(scenario: str, history: int, samples: Sequence[Sample]) -> Row:
    by_server = list(zip(*(sample.turns for sample in samples), strict=True))
    return Row(
        scenario,
        history,
        round(statistics.median(turn.n_prompt for turn in by_server[0])),
        tuple(statistics.median(of_server) for of_server in zip(*(s.ms for s in samples), strict=True)),
        statistics.median(ours / theirs for ours, theirs in (s.ms for s in samples)),
        tuple(round(statistics.median(turn.n_cached for turn in turns)) for turns in by_server),
        statistics.median(s.restore_ms for s in samples),
    )


def table(rows: Sequence[Row]) -> str:
    """Markdown."""
    heads = ("turn", "history", "prompt tokens", "duo, ms", "llama-server, ms", "ratio")
    rows_of_text: list[list[str]] = []
    for row in rows:
        cells = [row.scenario, str(row.history), str(row.n_prompt), *(f"{ms:.1f}" for ms in row.ms)]
        rows_of_text.append([*cells, f"{row.ratio:.2f}", *(str(n) for n in row.n_cached)])
    return report.table((*heads, "duo, cached tokens", "llama-server, cached tokens"), rows_of_text)


def verdict(rows: Sequence[Row]) -> str:
    """Pure. Each server's warm and restored turns by its other turns, and where duo is slower."""
    found = {(row.scenario, row.history): row for row in rows}
    lines: list[str] = []
    for history in sorted({row.history for row in rows}):
        parts: list[str] = []
        for scenario, base, what in ((WARM, ALONE, "its new tokens alone"), (DISK, COLD, "a cold one")):
            row, other = found.get((scenario, history)), found.get((base, history))
            if row and other:
                ours, theirs = (ms / by for ms, by in zip(row.ms, other.ms, strict=True))
                parts.append(f"{scenario} {ours:.2f} times {what} (llama-server {theirs:.2f})")
        lines.append(f"- {history} tokens: {'; '.join(parts)}.")
    restored = [f"{row.restore_ms:.1f} ms with {row.history}" for row in rows if row.scenario == DISK]
    lines.append(f"- Of llama-server's turn after a restart, POST /slots restore took {', '.join(restored)}.")
    slower = [f"{row.name} ({row.ratio:.2f})" for row in rows if row.ratio > 1]
    lines.append(f"- duo is slower than llama-server in: {'; '.join(slower) or 'none'}.")
    return "\n".join(lines)
