"""Time decodes of few rows on this CPU, after few and many tokens, with and without flash attention.

Whether flash attention is faster depends on the CPU, the model, the rows and the context (docs/adr/0012).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from server.errors import BackendError
from server.llama.backend import Batch
from server.llama.context import LlamaContext
from server.llama.context_params import context_params, spare_sequence
from server.llama.library import COMPRESSED, ROWS_ON_CPU, C, LoadedModel
from server.llama.options import FlashAttention, LlamaOptions
from server.stop_signals import leave_if_requested

Kind = Literal["on", "off"]
KINDS: tuple[Kind, Kind] = "off", "on"
DEPTHS = (64, 256, 1024)  # tokens before the timed rows: each four times the previous one
# Numbers of rows that are timed. Without 16, the time of many rows would be estimated from that of four,
# which flash attention makes quick.
WIDTHS = (1, 4, 16)
# The WIDTHS that every start times again, to notice other programs. One row is not enough: beside other
# programs it took its usual time, but four and sixteen rows took twice theirs. All WIDTHS: a start of a 400M
# model takes 0.35 s longer.
CHECKED = WIDTHS[:2]
ROUNDS = 5  # maximum timed decodes of each width at each depth. The shortest counts; see lead/calibration.py
# Times that everything is measured, if BUDGET_S suffices for all ROUNDS. With one pass, one of four starts of
# the bundled model found 7.9 ms for four rows instead of 3; with two, none of six did (docs/adr/0012).
PASSES = 2
FIRST = 4  # decodes whose shortest tells how slow the model is: the first ones read it from the disk
# Estimated time of one round with its preparation, in decodes of a single row: 72 with a 400M model on two
# EPYC cores, 100 with 28M, which is so quick that the error does not matter. Half: a start may take twice
# BUDGET_S.
ROUND = 75
# Maximum seconds that measuring adds to a first start. Models with steps longer than BUDGET_S / ROUND (67 ms)
# go unmeasured, without flash attention. Half: the limit is 33 ms; twice: a start may take 10 s longer.
BUDGET_S = 5.0


@dataclass(frozen=True, slots=True)
class AttentionTimes:
    """Seconds of a decode, by kind, number of rows (as in WIDTHS), and tokens before it (as in DEPTHS)."""

    seconds: Mapping[Kind, Sequence[Sequence[float]]]

    def step_s(self, kind: Kind, n_rows: int, n_tokens: int) -> float:
        """Return the seconds of a decode of n_rows rows after n_tokens tokens, interpolated."""
        rows = self.seconds[kind]
        at = [_on_line(DEPTHS[: len(row)], row, n_tokens) for row in rows]
        return _on_line(WIDTHS, at, n_rows)


def _on_line(places: Sequence[int], values: Sequence[float], place: float) -> float:
    """Return the value at `place`, interpolated; beyond the last place, extrapolated from the last two."""
    if place <= places[-1] or len(places) < 2:
        return float(np.interp(place, places, values))
    slope = (values[-1] - values[-2]) / (places[-1] - places[-2])
    return values[-1] + max(0.0, slope) * (place - places[-1])


def can_choose(model: LoadedModel) -> bool:
    """Return True if the model can be timed with and without flash attention.

    Timing needs a cache that has only movable cells: no recurrent state, no compressed cells.
    """
    stateful = C.llama_model_is_recurrent(model.handle) or C.llama_model_is_hybrid(model.handle)
    return not stateful and model.metadata("general.architecture") not in COMPRESSED


def measure(
    model: LoadedModel,
    options: LlamaOptions,
    *,
    budget_s: float = BUDGET_S,
    make: Callable[[], LlamaContext] = LlamaContext,
) -> AttentionTimes | None:
    """Time a model's decodes with and without flash attention, in two small contexts.

    Args:
        model: The loaded model.
        options: Options of the contexts, except their size.
        budget_s: Maximum seconds to spend.
        make: Returns a new context, not yet attached to the model.

    Returns:
        The times; None if the model has a state or immovable cells, or if budget_s is too short.
    """
    small = _small_options(model, options)
    depths = [depth for depth in DEPTHS if depth + WIDTHS[-1] <= small.n_cells]
    if not depths or not can_choose(model):
        return None
    with ExitStack() as stack:
        contexts = [stack.enter_context(closing(small_context(model, small, kind, make()))) for kind in KINDS]
        if not all(map(_can_move, contexts)):
            return None
        try:
            single_s = min(_decode_s(contexts[0], 0, 1) for _ in range(FIRST))
            n_rounds = min(ROUNDS, int(budget_s / (ROUND * single_s)))
            if not n_rounds:
                return None
            n_passes = PASSES if PASSES * ROUNDS * ROUND * single_s <= budget_s else 1
            found = [_pass(contexts, depths, n_rounds) for _ in range(n_passes)]
        except BackendError:
            return None
    seconds = np.min(found, axis=0)  # by depth, width and kind
    return AttentionTimes({kind: seconds[:, :, i].T.tolist() for i, kind in enumerate(KINDS)})


def _pass(contexts: Sequence[LlamaContext], depths: Sequence[int], n_rounds: int) -> list[list[list[float]]]:
    """Return seconds of a decode by depth, width and context. Leaves sequence 0 of each context empty."""
    found = [
        [_shortest_s(contexts, depth, width, n_rounds) for width in WIDTHS]
        for depth in _deepen_contexts(contexts, depths)
    ]
    for context in contexts:
        context.trim(0, 0)
    return found


def first_s(
    model: LoadedModel, options: LlamaOptions, make: Callable[[], LlamaContext] = LlamaContext
) -> list[float]:
    """Return the seconds of a decode for each width in CHECKED, to compare with those of measure().

    The rows follow DEPTHS[0] tokens, without flash attention. Raises BackendError.
    """
    with closing(small_context(model, _small_options(model, options), KINDS[0], make())) as context:
        if not context.handle:
            raise BackendError("llama.cpp makes no small context")
        _decode_s(context, 0, DEPTHS[0], keep=True)
        return [_shortest_s([context], DEPTHS[0], width, ROUNDS)[0] for width in CHECKED]


def _small_options(model: LoadedModel, options: LlamaOptions) -> LlamaOptions:
    n_cells = min(DEPTHS[-1] + WIDTHS[-1], model.longest(options.rope))
    return replace(options, n_cells=n_cells, n_seqs=2, n_streams=0, n_batch=DEPTHS[0], n_tail=0, head=None)


def small_context(
    model: LoadedModel, options: LlamaOptions, kind: FlashAttention, context: LlamaContext
) -> LlamaContext:
    """Attach `context`, with flash attention as in `kind`, to the model, and return it.

    Its handle stays None if llama.cpp fails.
    """
    params = context_params(replace(options, flash_attention=kind, n_ubatch=ROWS_ON_CPU))
    params.swa_full = True  # as the model's own context
    if C.llama_model_n_swa(model.handle):
        spare_sequence(params)
    if handle := model.context(params):
        context.attach(model, handle, n_streams=0, overlaps=False)
    return context


def _can_move(context: LlamaContext) -> bool:
    """Return True if the context's cells can be copied to later positions."""
    return bool(context.handle) and bool(C.llama_memory_can_shift(context.memory))


def _deepen_contexts(contexts: Sequence[LlamaContext], depths: Sequence[int]) -> Iterator[int]:
    """Fill sequence 0 of all contexts with tokens up to each depth in turn, and yield each depth reached.

    Only the first tokens are evaluated. Copies of their cells at later positions serve as the other tokens,
    because the time of a decode does not depend on the preceding tokens' content.
    """
    depth = depths[0]
    for context in contexts:
        _decode_s(context, 0, depth)
        _decode_s(context, 0, depth, keep=True)
    for wanted in depths:
        while depth < wanted:
            for context in contexts:
                context.load(1, context.save(0))
                C.llama_memory_seq_add(context.memory, 1, 0, -1, depth)
                context.copy(1, 0, depth, 2 * depth)
                context.trim(1, 0)
            depth *= 2
        yield depth


def _shortest_s(contexts: Sequence[LlamaContext], depth: int, width: int, n_rounds: int) -> list[float]:
    """Return, by context, the shortest of n_rounds decodes of `width` rows after `depth` tokens, in seconds.

    An untimed decode comes first, since the first decode also moves cells that were copied.
    """
    for context in contexts:
        _decode_s(context, depth, 1)
    rounds = [[_decode_s(context, depth, width) for context in contexts] for _ in range(n_rounds)]
    return [min(each) for each in zip(*rounds, strict=True)]


def _decode_s(context: LlamaContext, position: int, width: int, *, keep: bool = False) -> float:
    """Decode `width` tokens in sequence 0 at `position`, and return the seconds; undo it unless `keep`."""
    batch = Batch()
    batch.extend(0, position, [position % 7 + i % 50 for i in range(width)], width)
    leave_if_requested()
    began = time.perf_counter()
    context.decode(batch)
    seconds = time.perf_counter() - began
    if not keep:
        context.trim(0, position)
    return seconds
