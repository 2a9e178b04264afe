"""Measure what a change of a decode's shape costs.

A GPU replays a decode of the last one's shape from a recorded graph; for another shape the CPU builds and
records the graph again, which can take as long as the decode.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from server.llama.backend import Batch, Logits, Vocabulary
from server.stop_signals import leave_if_told

CONTEXT = 64  # tokens that the timed rows attend to. Twice: contexts up to 128 go unmeasured
# A mixture of experts reads the weights of all experts that any row chooses: rows of a text choose as those
# of a conversation do.
TEXT = (
    "Speculation pays where a step with eight rows takes hardly longer than one with a single row. That "
    "holds for dense models on most devices, because reading the weights takes longer than computing "
    "with them. Where each row chooses a few of many experts, every further row asks for weights that "
    "nobody has read yet, and the advantage shrinks: how much, depends on how alike neighbouring words "
    "are. Hence this paragraph, which has numbers (3.14, 2026), names (Ada, Kyoto), code such as `for i "
    "in range(8): print(i)` and ordinary prose."
)
# Decodes before the timed ones, and timed ones of each width: 111 in all for seven widths.
SETTLE, TIMED = 4, 5
SLOW_S = 0.1  # seconds of a decode beside which its graph does not matter: 11 s of a start. Twice: 22
# Factor that a change must cost at least. Of decodes that scatter by a tenth luck passes it in 0.1 percent of
# starts, or 1 percent with TIMED = 3 (simulated). 1.05: in 6; 1.2: changes that cost up to a fifth are borne.
MIN_SHAPE_GAIN = 1.1


@dataclass(frozen=True, slots=True)
class Shapes:
    """Seconds of a decode by its rows."""

    steady: dict[int, float]  # among decodes of one width
    mixed: dict[int, float]  # among all widths in turn

    @property
    def change_costs(self) -> bool:
        return sum(self.mixed.values()) > MIN_SHAPE_GAIN * sum(self.steady.values())

    @property
    def change_s(self) -> float:
        """Return the extra seconds, on average, of a decode after one of another width."""
        differences = [self.mixed[width] - steady_s for width, steady_s in self.steady.items()]
        return max(0.0, sum(differences) / len(differences)) if differences else 0.0

    @property
    def padding_pays(self) -> bool:
        """True if padding every decode to the widest is faster than mixed widths."""
        return (
            median(self.mixed.values()) > MIN_SHAPE_GAIN * self.steady[max(self.steady)]
            if self.steady
            else False
        )


UNKNOWN = Shapes({}, {})


class TimedModel(Protocol):
    """The part of a Backend that is needed to time decodes."""

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


def measure(backend: TimedModel, widths: Sequence[int]) -> Shapes:
    """Measure what changes of shape cost; UNKNOWN for models that cannot be trimmed, and slow ones.

    The KV cache must be empty and is left so. Raises BackendError.
    """
    widths = [w for w in widths if w <= min(backend.n_batch, backend.n_ctx - CONTEXT)]
    if not backend.can_trim or len(widths) < 2:
        return UNKNOWN
    try:
        fill(backend)
        if min(_median_times(backend, widths[:1])) > SLOW_S:
            return UNKNOWN
        mixed = _median_times(backend, widths)
        steady = [_median_times(backend, [width])[0] for width in widths]
        return Shapes(dict(zip(widths, steady, strict=True)), dict(zip(widths, mixed, strict=True)))
    finally:
        backend.trim(0, 0)


def _median_times(backend: TimedModel, widths: Sequence[int]) -> list[float]:
    """Return the median seconds of decodes of these widths in turn."""
    seconds: list[list[float]] = [[] for _ in widths]
    for i in range(SETTLE + TIMED * len(widths)):
        at = i % len(widths)
        seconds[at].append(decode_s(backend, CONTEXT, widths[at]))
        backend.trim(0, CONTEXT)
    return [median(s[-TIMED:]) for s in seconds]


def fill(backend: TimedModel) -> None:
    """Evaluate CONTEXT tokens in sequence 0, which is empty."""
    for position in range(0, CONTEXT, backend.n_batch):
        decode_s(backend, position, min(backend.n_batch, CONTEXT - position))


def decode_s(backend: TimedModel, position: int, width: int) -> float:
    """Return the seconds of a decode of `width` rows of sequence 0 from this position on."""
    text = backend.vocab.tokenize(TEXT, special=False)
    batch = Batch()
    batch.extend(0, position, [text[i % len(text)] for i in range(position, position + width)], width)
    leave_if_told()
    began = time.perf_counter()
    backend.decode(batch)
    return time.perf_counter() - began
