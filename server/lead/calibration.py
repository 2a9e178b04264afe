"""Seconds of a decode by its rows on this machine: measured at the first start, and remembered.

The lead goes on learning from every step (server/speculation/gating/costs.py); this serves the first reply.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from server.errors import BackendError
from server.lead.recollection import keep, recall
from server.llama.backend import Backend
from server.llama.shapes import CONTEXT, decode_s, fill
from server.llama.shapes import measure as measure_shapes

logger = logging.getLogger("duo.lead")

WIDTHS = (1, 2, 4, 8, 16, 3, 6, 12, 5, 10, 24, 7, 9, 14, 20, 32)  # rows, the important ones first
PADDED = (4, 8, 12)  # rows that steps may be padded to, beside the widest
ROUNDS = 5  # samples of a width at most
BUDGET_S = 3.0  # seconds of a start that measuring may take
CHECKED, CHECK_S = 4, 0.3  # rows and seconds at most of checking what is remembered
DISTURBED = 0.8  # of the remembered seconds: if it is faster now, the machine was busy then


def measure(backend: Backend, max_rows: int, *, budget_s: float = BUDGET_S) -> dict[int, float]:
    """Seconds of a decode by its rows, for the first WIDTHS within budget_s: the least of several samples,
    since disturbances only add. The KV cache must be empty and is left so. {} for models that cannot be
    trimmed and have no second sequence to go back to."""
    widths = [width for width in WIDTHS if width <= min(max_rows, backend.n_batch, backend.n_ctx - CONTEXT)]
    if not widths or not (backend.can_trim or backend.n_seqs > 1):
        return {}
    deadline = time.perf_counter() + budget_s
    seen: dict[int, list[float]] = {}
    try:
        fill(backend)
        if not backend.can_trim:
            backend.copy(0, 1, 0, 0)
        for attempt in range(ROUNDS + 1):
            for width in widths:
                if seen and time.perf_counter() > deadline:
                    break
                seconds = decode_s(backend, CONTEXT, width)
                _forget(backend)
                if attempt:  # the first round warms up, if there is time for a second one
                    seen[width] = [*seen.get(width, []), seconds]
                else:
                    seen.setdefault(width, [seconds])
            if attempt == 0 and time.perf_counter() < deadline - budget_s / 2:
                seen.clear()
    except BackendError as error:
        logger.warning("steps could not be measured: %s", error.message)
    for seq in range(min(2, backend.n_seqs)):
        backend.trim(seq, 0)
    return {width: min(times) for width, times in sorted(seen.items())}


def _forget(backend: Backend) -> None:
    """Go back to the first CONTEXT tokens of sequence 0."""
    if not backend.can_trim:
        backend.copy(1, 0, CONTEXT, CONTEXT)  # the state there, kept in the second sequence
    backend.trim(0, CONTEXT)


def steady_widths(backend: Backend, one: int, most: int) -> dict[int, float]:
    """Seconds of a decode by rows, each after others of its width; {} if a change of width costs nothing.
    one: rows of a session with all its guesses; most: rows of the widest step. Not remembered: it is
    quick."""
    try:
        shapes = measure_shapes(backend, sorted({w for w in (1, *PADDED, one, most) if w <= most}))
        return shapes.steady if shapes.change_costs else {}
    except BackendError as error:
        logger.warning("widths could not be measured: %s", error.message)
        return {}


def remembered(backend: Backend, max_rows: int, what: Sequence[object]) -> dict[int, float]:
    """What measure() found earlier on this machine, unless a short check finds it disturbed; else measure().
    what: recollection.of_model()."""
    known: Any = recall("steps", [*what, max_rows])
    if isinstance(known, dict) and known:
        before = {int(width): float(seconds) for width, seconds in known.items()}  # pyright: ignore
        now = measure(backend, min(CHECKED, max_rows), budget_s=CHECK_S)
        if all(now.get(width, seconds) > DISTURBED * seconds for width, seconds in before.items()):
            return before
    found = measure(backend, max_rows)
    keep("steps", [*what, max_rows], {str(width): seconds for width, seconds in found.items()})
    return found
