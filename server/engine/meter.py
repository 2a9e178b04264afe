"""Measures what each step costs."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from server.engine.proposer import Outcome, Plan, Step, StepTiming
from server.engine.scheduler import Work
from server.engine.state import EngineState
from server.llama.backend import Batch, Logits

PREFILL = 32  # prompt rows from which a step tells what a prompt token costs: below, reading weights does
N_OVERHEADS = 1024  # steps that the median overhead is taken of


class StepKind(NamedTuple):
    """Rows of a step without prompts, cells in use, and tokens of a session in it, on average. Cells and
    tokens in the middle between powers of two."""

    n_rows: int
    n_cells: int
    n_tokens: int


class Meter:
    """Times one step after the other: begin(), decode(), end()."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._began = 0.0
        self._plain = False  # whether the step has neither prompts nor beams
        self._n_tokens = 0  # of its sessions, before its commits
        self._n_rows = self._n_cells = 0
        self._decode_s = 0.0
        self.n_decodes = self.n_decoding = 0  # decodes, and sessions in them
        self._overheads: deque[float] = deque(maxlen=N_OVERHEADS)
        self.kinds: Counter[StepKind] = Counter()

    def begin(self) -> None:
        self._began = self._state.clock()

    def decode(self, batch: Batch, works: Sequence[Work], n_cells: int) -> Logits:
        """The batch decoded. n_cells: in use before. Raises BackendError."""
        state = self._state
        self._plain = all(work.session.decodes and work.session.request.n_beams == 1 for work in works)
        began = state.clock()
        logits = state.backend.decode(batch)
        self._decode_s = state.clock() - began
        self.n_decodes, self.n_decoding = self.n_decodes + 1, self.n_decoding + len(works)
        self._n_tokens = _n_tokens(works)
        self._n_rows, self._n_cells = len(batch), n_cells
        n_prompt = len(batch) - sum(batch.wanted)
        if n_prompt >= PREFILL and not self._plain:
            state.residence.move_costs.evaluated(n_prompt, self._decode_s, self._n_cells)
        return logits

    def end(self, works: Sequence[Work], plan: Plan, outcomes: Sequence[Outcome]) -> Step:
        """Return the step, whose tokens are committed.

        Args:
            works: The rows of the step without guesses.
            plan: Its guesses.
            outcomes: What it committed.
        """
        if not self._plain:
            return Step(plan, None, outcomes)
        state, rows, cells, decode_s = self._state, self._n_rows, self._n_cells, self._decode_s
        step_s = state.clock() - self._began
        state.residence.move_costs.stepped(decode_s, cells)
        self.kinds[StepKind(rows, _rounded(cells), _rounded(self._n_tokens // len(works)))] += 1
        if len(works) == 1:
            self._overheads.append(step_s - decode_s - plan.spent_s)
        n_new = _n_tokens(works) - self._n_tokens
        return Step(plan, StepTiming(rows, cells, decode_s, step_s, n_new, len(works)), outcomes)

    @property
    def cells(self) -> tuple[int, int]:
        """Cells in use after the last decode at most, cached conversations included, and all there are."""
        return self._n_cells + self._n_rows, self._state.backend.n_cells

    def overhead_us(self) -> float:
        """Median microseconds outside decode and drafting in recent one-session steps; 0 before the first."""
        return median(self._overheads) * 1e6 if self._overheads else 0.0


def _rounded(n: int) -> int:
    """The middle between powers of two, 64 at least."""
    return 3 * max(64, 1 << n.bit_length()) // 4


def _n_tokens(works: Sequence[Work]) -> int:
    return sum([len(work.session.tokens) for work in works])
