"""Measure the seconds of a decode on this machine by its number of rows.

The speculator needs these times before the first step, to decide which drafts pay. They are measured at the
first start with a model and kept in a file (recollection.py). Afterwards every step corrects them
(server/speculation/step_times.py).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import replace
from typing import Any, TypeVar, TypeVarTuple

from server.errors import BackendError
from server.lead.recollection import keep, recall
from server.llama.attention_times import small_context
from server.llama.backend import Backend
from server.llama.context import LlamaContext
from server.llama.llamacpp import LlamaBackend
from server.llama.shapes import CONTEXT, UNKNOWN, Shapes, TimedModel, decode_s, fill
from server.llama.shapes import measure as measure_shapes

logger = logging.getLogger("duo.lead")

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# Numbers of rows that are timed, the most frequently used first.
WIDTHS = (1, 2, 4, 8, 16, 3, 6, 12, 5, 10, 24, 7, 9, 14, 20, 32, 64, 48)
# Numbers of rows that steps may be padded to, beside the largest; 14 decodes time each.
PADDED = (2, 4, 8, 12, 17, 24, 33)
# Maximum timed decodes of each width, of which the shortest counts. If decodes are a tenth too long on
# average, the shortest of 5 is 2 percent too long. Half (2): 5 percent; twice (10): 1 percent (simulated).
MAX_TIMED = 5
CALIBRATION_S = 3.0  # maximum seconds of a measurement. Half: a slow model has fewer WIDTHS timed
CHECKED, CHECK_S = 4, 0.3  # maximum rows, and maximum seconds, of the check of a kept measurement
# Maximum rows that a first start times, within CHECK_S. Half: eight rows are not timed, but estimated as 1.2
# times the time of four.
FIRST_WIDTH = 8
# If a decode takes less than this share of its recorded time, other work disturbed the recording, which is
# repeated. So recorded times are at most a quarter too long. 0.6: two thirds; 0.9: a ninth, but scatter
# sometimes causes a repetition, which takes CALIBRATION_S.
DISTURBED = 0.8
# Seconds until a start warns that its first decodes have not ended. Half: it warns of slow disks; twice: the
# user has given up.
SILENT_S = 60.0


def measure(backend: TimedModel, max_rows: int, *, budget_s: float = CALIBRATION_S) -> dict[int, float]:
    """Time decodes of WIDTHS up to max_rows, for budget_s seconds; return seconds by number of rows.

    Each time is the shortest of several, since other programs can only lengthen a decode. The KV cache must
    be empty, and is left empty. Returns {} for a model that cannot be trimmed, unless its state can be copied
    to a second sequence.
    """
    widths = [width for width in WIDTHS if width <= min(max_rows, backend.n_batch, backend.n_ctx - CONTEXT)]
    if not widths or not (backend.can_trim or (backend.can_copy and backend.n_seqs > 1)):
        return {}
    deadline = time.perf_counter() + budget_s
    seen: dict[int, list[float]] = {}
    try:
        fill(backend)
        if not backend.can_trim:
            backend.copy(0, 1, 0, 0)
        for attempt in range(MAX_TIMED + 1):
            for width in widths:
                if seen and time.perf_counter() > deadline:
                    break
                seconds = decode_s(backend, CONTEXT, width)
                _forget_timed(backend)
                seen.setdefault(width, []).append(seconds)
            if attempt == 0 and time.perf_counter() < deadline - budget_s / 2:
                seen.clear()  # there is time for another round: the first one only warmed up
    except BackendError as error:
        logger.warning("cannot time steps of the model, so the first requests do: %s", error.message)
    for seq in range(min(2, backend.n_seqs)):
        backend.trim(seq, 0)
    return {width: min(times) for width, times in sorted(seen.items())}


def _forget_timed(backend: TimedModel) -> None:
    """Reset sequence 0 to its first CONTEXT tokens."""
    if not backend.can_trim:
        backend.copy(1, 0, CONTEXT, CONTEXT)  # the second sequence keeps the state after CONTEXT tokens
    backend.trim(0, CONTEXT)


def steady_widths(backend: Backend, most: int, own_graphs: bool = False) -> Shapes:
    """Time decodes of PADDED numbers of rows, to choose how to pad steps; see measure() in llama/shapes.py.

    Every start of a lead on a GPU measures this, since it is quick.

    Args:
        backend: The model.
        most: Rows of the largest step.
        own_graphs: Each width has its own recorded graph (graph_keys.py). Recording takes time, so few widths
            are best even if a change of width costs little.

    Returns:
        The times; UNKNOWN if a change of width costs little, as on CPUs, or if timing fails.
    """
    if not backend.overlaps:
        return UNKNOWN
    widths = {width for width in (1, *PADDED) if width <= most}
    try:
        shapes = measure_shapes(backend, sorted(widths | {most}))
        return shapes if own_graphs or shapes.change_costs else UNKNOWN
    except BackendError as error:
        logger.warning("cannot time changes of width, so steps are not padded: %s", error.message)
        return UNKNOWN


def remembered(backend: TimedModel, max_rows: int, what: Sequence[object]) -> dict[int, float]:
    """Return the result of measure(), from the file of an earlier start if it still holds.

    A few decodes check the seconds in the file. If these decodes are much faster, all are measured again.

    Args:
        backend: The model.
        max_rows: Rows of the widest step.
        what: The model's files and options, from of_model(); a file for other ones is not used.
    """
    if before := kept_times(max_rows, what):
        now = measure(backend, min(CHECKED, max_rows), budget_s=CHECK_S)
        if all(now.get(width, seconds) > DISTURBED * seconds for width, seconds in before.items()):
            return before
    logger.info("  steps    their times are measured, once for this model on this machine")
    found = measure(backend, max_rows)
    keep("steps", [*what, max_rows], {str(width): seconds for width, seconds in found.items()})
    return found


def remembered_in_small_context(
    backend: LlamaBackend, max_rows: int, what: Sequence[object], make: Callable[[], LlamaContext]
) -> dict[int, float]:
    """Return the seconds of decodes by number of rows, as remembered() does; {} if there is no room.

    Measures in a small context of the same weights. Call it on the engine's thread (idle_measuring.py).

    Args:
        backend: The model.
        max_rows: Rows of the widest step.
        what: The result of of_model() for the model's options.
        make: Returns a new context; exceptions of its decodes pass through.
    """
    with closing(_SmallContext(backend, max_rows, make())) as aside:
        return remembered(aside, max_rows, what) if aside.n_ctx else {}


class _SmallContext:
    """A TimedModel over a small context of a backend's model. Owns the context until close()."""

    def __init__(self, backend: LlamaBackend, max_rows: int, context: LlamaContext) -> None:
        self.vocab, self.can_trim, self.can_copy = backend.vocab, backend.can_trim, backend.can_copy
        self.n_seqs, self.n_batch = 2, max(CONTEXT, max_rows)
        n_cells = min(CONTEXT + max_rows, backend.n_ctx)
        options = replace(
            backend.options,
            n_cells=2 * n_cells,
            n_seqs=2,
            n_streams=0,
            n_batch=self.n_batch,
            n_tail=0,
            head=None,
        )
        self._context = small_context(backend.model, options, options.flash_attention, context)
        self.n_ctx = n_cells if context.handle else 0
        self.decode, self.trim, self.copy = context.decode, context.trim, context.copy

    def close(self) -> None:
        self._context.close()


def first_times(backend: TimedModel, max_rows: int, what: Sequence[object]) -> dict[int, float]:
    """Return the first estimate of seconds by rows: from an earlier start, else from a few decodes now.

    Args:
        backend: The model.
        max_rows: Rows of the widest step.
        what: The result of of_model() for the model's options.
    """
    return kept_times(max_rows, what) or measure(backend, min(FIRST_WIDTH, max_rows), budget_s=CHECK_S)


def kept_times(max_rows: int, what: Sequence[object]) -> dict[int, float]:
    """Return the seconds that an earlier start measured, by number of rows; {} if there are none.

    For the parameters see first_times().
    """
    known: Any = recall("steps", [*what, max_rows])
    if not isinstance(known, dict):
        return {}
    return {int(width): float(seconds) for width, seconds in known.items()}  # pyright: ignore


def on_own_thread(work: Callable[[*Ts], T], *arguments: *Ts) -> T:
    """Call work(*arguments) on a new thread and return the result. For decodes before the engine runs.

    OpenMP keeps worker threads for each thread that has decoded, until that thread ends. With more workers
    than cores, the engine's workers would sleep at every barrier. Logs a warning after SILENT_S, because a
    device may hang.
    """
    with ThreadPoolExecutor(1) as own:
        done = own.submit(work, *arguments)
        if not wait([done], SILENT_S).done:
            logger.warning(
                "  steps    the first ones have not ended for %.0f s: the disk is slow, or the device hangs "
                "(on CUDA GGML_CUDA_DISABLE_GRAPHS=1 may help)",
                SILENT_S,
            )
        return done.result()
