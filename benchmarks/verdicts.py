"""Compare two servers over all prompts, as README's claims and issues' tables do. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks import report
from benchmarks.client import Reply
from benchmarks.contest import RATED_TOKENS, Heat

HARMED = 0.9  # a reply below this ratio counts as one that drafting has harmed
DOCUMENT_KIND = "document"  # kind of the prompts that are long
_HEADS = (
    "pair | in all | with prompts | median | slowest reply | below 0.9 | first text | of documents"
    " | memory | same text"
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Two servers compared; every ratio is above 1 if the first has or takes more."""

    in_all: float | None  # of tokens per second while decoding, over all replies together
    with_prompts: float  # of tokens per second from the requests to the ends
    median: float | None  # of the ratios of single replies, by the client's clock
    slowest: float | None  # the least of them
    n_slow: int  # replies with a ratio below HARMED
    n_rated: int  # replies of at least RATED_TOKENS tokens from both
    first_text: float  # of seconds to the first text, the median over prompts
    first_text_of_documents: float | None  # the same over the long prompts
    n_equal: int  # replies with the same text
    n_replies: int


def verdict(heats: Sequence[Heat], ours: int, theirs: int) -> Verdict:
    """Compare server `ours` with server `theirs`, given by their indices in the replies.

    Raises:
        ValueError: There is no heat.
    """
    if not heats:
        raise ValueError("no prompt was answered by both servers")
    pairs = [(heat.replies[ours], heat.replies[theirs]) for heat in heats]
    long = [pair for pair in pairs if min(reply.n_tokens for reply in pair) >= RATED_TOKENS]
    ratios = [a.client_rate / b.client_rate for a, b in long if a.client_rate and b.client_rate]
    firsts = [a.first_ms / b.first_ms for a, b in pairs if b.first_ms]
    kinds = [heat.prompt.kind for heat in heats]
    documents = [first for first, kind in zip(firsts, kinds, strict=False) if kind == DOCUMENT_KIND]
    mine, other = (_rate_in_all([pair[i] for pair in long]) for i in (0, 1))
    return Verdict(
        in_all=mine / other if mine and other else None,
        with_prompts=_rate_with_prompts([a for a, _ in pairs]) / _rate_with_prompts([b for _, b in pairs]),
        median=statistics.median(ratios) if ratios else None,
        slowest=min(ratios, default=None),
        n_slow=sum(ratio < HARMED for ratio in ratios),
        n_rated=len(ratios),
        first_text=statistics.median(firsts) if firsts else 1.0,
        first_text_of_documents=statistics.median(documents) if documents else None,
        n_equal=sum(a.text == b.text for a, b in pairs),
        n_replies=len(pairs),
    )


def _rate_in_all(replies: Sequence[Reply]) -> float | None:
    """Return tokens per second of all replies together, without each first token and its time."""
    timed = [(reply.n_tokens - 1, reply.client_rate) for reply in replies if reply.client_rate]
    seconds = sum(n / rate for n, rate in timed)
    return sum(n for n, _ in timed) / seconds if seconds else None


def _rate_with_prompts(replies: Sequence[Reply]) -> float:
    """Return tokens per second of all replies together, from each request to its end."""
    return sum(reply.n_tokens for reply in replies) / sum(reply.ended - reply.asked for reply in replies)


def best_drafting(names: Sequence[str], heats: Sequence[Heat]) -> int | None:
    """Return the index of the fastest llama-server that drafts, None if there is none."""
    rates = {
        i: _rate_in_all([heat.replies[i] for heat in heats]) or 0.0
        for i, name in enumerate(names)
        if name.startswith("llama-server,")
    }
    return max(rates, key=lambda i: rates[i], default=None)


def pairs_of(names: Sequence[str], heats: Sequence[Heat]) -> list[tuple[int, int]]:
    """Return the pairs of servers to compare, by index.

    Every duo is compared with llama-server without drafts. Every duo that drafts is also compared with the
    best llama-server that drafts, and with duo without drafts.
    """
    if not heats:
        return []
    plain = [i for i, name in enumerate(names) if name == "llama-server"]
    own = [i for i, name in enumerate(names) if name == "duo"]
    best = best_drafting(names, heats)
    found: list[tuple[int, int]] = []
    for i, name in enumerate(names):
        if name.startswith("duo"):
            found += [(i, j) for j in plain]
        if name.startswith("duo,"):
            found += [(i, j) for j in (*([] if best is None else [best]), *own)]
    return found


def verdicts_table(names: Sequence[str], heats: Sequence[Heat], memory: Sequence[int | None]) -> str:
    """Return markdown with a line for each pair.

    Args:
        names: The servers, in the order of the replies.
        heats: The prompts that all servers answered.
        memory: Resident bytes of each server's main process; None if unknown.
    """
    rows = [_row(names, verdict(heats, i, j), (i, j), memory) for i, j in pairs_of(names, heats)]
    return report.table(_HEADS, rows)


def _row(
    names: Sequence[str], found: Verdict, pair: tuple[int, int], memory: Sequence[int | None]
) -> list[str]:
    ours, theirs = (memory[i] for i in pair)
    return [
        f"{names[pair[0]]} : {names[pair[1]]}",
        report.number(found.in_all, 2),
        report.number(found.with_prompts, 2),
        report.number(found.median, 2),
        report.number(found.slowest, 2),
        f"{found.n_slow} of {found.n_rated}",
        report.number(found.first_text, 2),
        report.number(found.first_text_of_documents, 2),
        f"{ours / theirs:.2f}" if ours and theirs else "-",
        f"{found.n_equal} of {found.n_replies}",
    ]


def kinds_table(names: Sequence[str], heats: Sequence[Heat]) -> str:
    """Return markdown: each server's tokens per second, over all replies of a kind together."""
    kinds = list(dict.fromkeys(heat.prompt.kind for heat in heats))
    rows = [
        [
            name,
            *(
                report.number(_rate_in_all([heat.replies[i] for heat in heats if heat.prompt.kind == kind]))
                for kind in kinds
            ),
        ]
        for i, name in enumerate(names)
    ]
    return report.table(["tokens per second", *kinds], rows)
