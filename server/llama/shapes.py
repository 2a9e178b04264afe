"""Measure how much time a GPU loses when consecutive decodes have different shapes.

A GPU replays a decode with the previous decode's shape from a recorded graph. For another shape the CPU
builds and records the graph again, which can take as long as the decode.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from server.llama.backend import Backend, Batch, Logits, Vocabulary
from server.stop_signals import leave_if_requested

CONTEXT = 64  # tokens before the timed rows. Twice: models with contexts up to 128 go unmeasured
# Text of the timed rows. A mixture of experts reads the weights of every expert that any row chooses, and
# rows of a real text choose experts as those of a conversation do.
TEXT = (
    "Speculation pays where a step with eight rows takes hardly longer than one with a single row. That "
    "holds for dense models on most devices, because reading the weights takes longer than computing "
    "with them. Where each row chooses a few of many experts, every further row asks for weights that "
    "nobody has read yet, and the advantage shrinks: how much, depends on how alike neighbouring words "
    "are. Hence this paragraph, which has numbers (3.14, 2026), names (Ada, Kyoto), code such as `for i "
    "in range(8): print(i)` and ordinary prose."
)
# Untimed decodes at the start of each measurement, and timed decodes of each width: 111 decodes in all for
# seven widths.
UNTIMED, TIMED = 4, 5
SLOW_S = 0.1  # seconds of a decode from which on graphs do not matter: measuring would take 11 s. Twice: 22 s
# Minimum ratio of mixed to steady times at which a change of width counts as costly. If times scatter by a
# tenth, chance exceeds the ratio in 0.1 percent of starts; with TIMED = 3, in 1 percent (simulated). 1.05: in
# 6 percent; 1.2: changes that cost up to a fifth are ignored.
MIN_SHAPE_GAIN = 1.1


@dataclass(frozen=True, slots=True)
class Shapes:
    """Seconds of a decode by its number of rows (width)."""

    steady: dict[int, float]  # after decodes of the same width
    mixed: dict[int, float]  # with all widths in turn

    @property
    def change_costs(self) -> bool:
        return sum(self.mixed.values()) > MIN_SHAPE_GAIN * sum(self.steady.values())

    @property
    def change_s(self) -> float:
        """Return the mean additional seconds of a decode after a decode with another number of rows."""
        differences = [self.mixed[width] - steady_s for width, steady_s in self.steady.items()]
        return max(0.0, sum(differences) / len(differences)) if differences else 0.0

    @property
    def padding_pays(self) -> bool:
        """True if changes cost, and padding every decode to the widest is faster than mixed widths."""
        return self.change_costs and (
            median(self.mixed.values()) > MIN_SHAPE_GAIN * self.steady[max(self.steady)]
        )


UNKNOWN = Shapes({}, {})


class TimedModel(Protocol):
    """The part of Backend that is needed to time decodes."""

    @property
    def vocab(self) -> Vocabulary: ...

    n_ctx: int
    n_seqs: int
    n_batch: int
    can_trim: bool
    can_copy: bool

    def decode(self, batch: Batch) -> Logits: ...

    def trim(self, seq: int, length: int) -> None: ...

    def copy(self, source: int, target: int, start: int, end: int) -> None: ...


def measure(backend: Backend, widths: Sequence[int]) -> Shapes:
    """Time decodes of these widths (numbers of rows): all in turn and, on a GPU, each repeatedly.

    A CPU records no graphs, so a change of width costs nothing there. On a CPU the shortest time of each
    width counts, since other programs only lengthen a decode. The KV cache must be empty, and is left empty.
    Raises BackendError.

    Returns:
        The times; UNKNOWN if the model cannot be trimmed, if a decode takes longer than SLOW_S, or if fewer
        than two widths fit into a decode.
    """
    widths = [w for w in widths if w <= min(backend.n_batch, backend.n_ctx - CONTEXT)]
    if not backend.can_trim or len(widths) < 2:
        return UNKNOWN
    try:
        fill(backend)
        if median(_timed(backend, widths[:1])[0]) > SLOW_S:
            return UNKNOWN
        in_turn = dict(zip(widths, _timed(backend, widths), strict=True))
        if not backend.overlaps:
            least = {width: min(seconds) for width, seconds in in_turn.items()}
            return Shapes(least, least)
        steady = {width: median(_timed(backend, [width])[0]) for width in widths}
        return Shapes(steady, {width: median(seconds) for width, seconds in in_turn.items()})
    finally:
        backend.trim(0, 0)


def _timed(backend: TimedModel, widths: Sequence[int]) -> list[list[float]]:
    """Decode the widths in turn, several times, and return the last TIMED seconds of each."""
    seconds: list[list[float]] = [[] for _ in widths]
    for i in range(UNTIMED + TIMED * len(widths)):
        at = i % len(widths)
        seconds[at].append(decode_s(backend, CONTEXT, widths[at]))
        backend.trim(0, CONTEXT)
    return [s[-TIMED:] for s in seconds]


def fill(backend: TimedModel) -> None:
    """Evaluate CONTEXT tokens in sequence 0, which is empty."""
    for position in range(0, CONTEXT, backend.n_batch):
        decode_s(backend, position, min(backend.n_batch, CONTEXT - position))


def decode_s(backend: TimedModel, position: int, width: int) -> float:
    """Decode `width` rows of sequence 0 from this position on, and return the seconds that it takes."""
    text = backend.vocab.tokenize(TEXT, special=False)
    batch = Batch()
    batch.extend(0, position, [text[i % len(text)] for i in range(position, position + width)], width)
    leave_if_requested()
    began = time.perf_counter()
    backend.decode(batch)
    return time.perf_counter() - began
