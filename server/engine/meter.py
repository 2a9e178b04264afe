"""Measure the cost of each step."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from server.engine.proposer import Outcome, Plan, Step, StepTiming
from server.engine.scheduler import Work
from server.engine.state import EngineState
from server.llama.backend import Batch, Logits

PREFILL = 32  # minimum prompt rows to measure a token's cost: with fewer, reading weights dominates
N_OVERHEADS = 1024  # latest steps whose median overhead is reported


class StepKind(NamedTuple):
    """Properties that the time of a step without prompts depends on."""

    n_rows: int
    n_cells: int  # cells in use, rounded
    n_tokens: int  # mean number of a session's tokens, rounded


class Meter:
    """Times steps one by one: begin(), decode(), end()."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._began = 0.0
        self._plain = False  # True if the step has neither prompts nor beams
        self._n_tokens = 0  # tokens of the step's sessions, before it commits any
        self._n_rows = self._n_cells = 0
        self._decode_s = 0.0
        self.n_decodes = self.n_decoding = 0  # decodes so far, and the total of sessions in them
        self._overheads: deque[float] = deque(maxlen=N_OVERHEADS)
        self.kinds: Counter[StepKind] = Counter()

    def begin(self) -> None:
        self._began = self._state.clock()

    def decode(self, batch: Batch, works: Sequence[Work], n_cells: int) -> Logits:
        """Decode the batch and time it; n_cells are in use before it. Raises BackendError."""
        state = self._state
        self._plain = all(work.session.decodes and work.session.request.n_beams == 1 for work in works)
        began = state.clock()
        logits = state.backend.decode(batch)
        self._decode_s = state.clock() - began
        self.n_decodes, self.n_decoding = self.n_decodes + 1, self.n_decoding + len(works)
        self._n_tokens = _n_tokens(works)
        self._n_rows, self._n_cells = len(batch), n_cells
        if not self._plain and (n_prompt := len(batch) - sum(batch.wanted)) >= PREFILL:
            state.residence.move_costs.evaluated(n_prompt, self._decode_s, self._n_cells)
        return logits

    def end(self, works: Sequence[Work], plan: Plan, outcomes: Sequence[Outcome]) -> Step:
        """Return the step's plan, times and outcomes. Call it once the tokens are committed.

        Args:
            works: The step's work, one for each of its sessions; the guesses are in `plan`.
            plan: The step's guesses.
            outcomes: What the step committed.
        """
        if not self._plain:
            return Step(plan, None, outcomes)
        state, rows, cells, decode_s = self._state, self._n_rows, self._n_cells, self._decode_s
        step_s = state.clock() - self._began
        state.residence.move_costs.stepped(decode_s, cells)
        self.kinds[StepKind(rows, _rounded_middle(cells), _rounded_middle(self._n_tokens // len(works)))] += 1
        if len(works) == 1:
            self._overheads.append(step_s - decode_s - plan.spent_s)
        n_new = _n_tokens(works) - self._n_tokens
        return Step(plan, StepTiming(rows, cells, decode_s, step_s, n_new, len(works)), outcomes)

    @property
    def cells(self) -> tuple[int, int]:
        """Return (cells in use after the last decode, cached conversations included; all cells)."""
        return self._n_cells + self._n_rows, self._state.backend.n_cells

    def overhead_us(self) -> float:
        """Return the median time of one-session steps without decode and drafting, in µs; 0 before any."""
        return median(self._overheads) * 1e6 if self._overheads else 0.0


def _rounded_middle(n: int) -> int:
    """Return 1.5 times the largest power of two that is at most n; at least 48."""
    return 3 * max(64, 1 << n.bit_length()) // 4


def _n_tokens(works: Sequence[Work]) -> int:
    return sum([len(work.session.tokens) for work in works])
