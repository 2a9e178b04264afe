"""Measure Python's share of a lead's step, of a row that its block drafts, and of a drafter's turn.

`python -m benchmarks.overhead [--only "draft, chain by block; temperature 0"] [--bytecodes]`.

One session runs over a backend without a model. Its decode copies prepared rows of logits, which leaves them
in the processor's caches as a real decode does; its time is not counted. On the clocks, decodes take as long
as a model's, so that decisions are those of a server.

Steps run the real engine and proposer. Guesses are right with probability 0.8. They come from a draft model
in the lead, whose decodes do not count either, or as messages from a drafter, which replays a script between
steps. Turns run the real worker and model drafter, under the clock of clocked.py. Their lead generates what
the drafter draws, except for some tokens.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks import prepared, program, report
from benchmarks.bytecodes import BytecodeWatch
from benchmarks.clocked import MOST_AT_ONCE, N_BRANCHES, ClockedDrafter, run
from benchmarks.prepared import DEPTH, LEAVES, N_PROMPT, PreparedBackend, PreparedBlock, Script, Watch
from drafters.kinds import MAX_DRAFT_ROWS
from server.engine.engine import Engine
from server.engine.events import Committed, Event
from server.engine.request import GenerationRequest
from server.engine.scheduler import Limits
from server.errors import StartupError
from server.llama.backend import Backend, Logits
from server.llama.shapes import UNKNOWN, Shapes
from server.llama.with_block import WithBlock
from server.sampling.params import SamplingParams
from server.speculation.policy import Policy
from server.speculation.sources.block_draft import BlockDraft
from server.speculation.sources.draft_model import DraftModel
from server.speculation.sources.inline import InlineModel
from server.speculation.sources.remote import RemoteDrafters
from server.speculation.step_times import StepTimes
from server.speculation.wire.presence import Presence, vocabulary_card

PLAIN_US, DRAFTED_US = 150.0, 400.0  # bounds without and with guesses: 3 and 8 % of 5 ms on an H200
DRAFT_US = 60.0  # bound for a drafted row at temperature 0: 8 of them take 10 % of 5 ms
WARM_UP_STEPS, WARM_UP_TURNS = 20, 60
DRAFT_S = 0.00005  # of a decode of the draft model in the lead
R = 8.0  # turns of the drafter per plain step. At 20 its messages are more than a lead takes (MAX_RATE)
MIXED: dict[int, float] = {1: 2.0, MAX_DRAFT_ROWS: 2.0}  # seconds: a change of shape is much too dear
SHAPES = {"path": Shapes({1: 0.0005, MAX_DRAFT_ROWS: 0.0005}, MIXED), "tree": UNKNOWN}


@dataclass(frozen=True, slots=True)
class Work:
    """The cost of steps, turns or drafted rows."""

    spent: Sequence[float]  # of each one outside decode, in seconds or bytecodes
    n_guesses: float  # the mean
    n_committed: float  # tokens, the mean

    @property
    def median(self) -> float:
        return statistics.median(self.spent)


# -- a lead ----------------------------------------


@dataclass(frozen=True, slots=True)
class Guesses:
    """A source of guesses."""

    by: str = ""  # "drafter", "lead" (its draft model), "block" (in the lead), or "" for nobody
    leaves: int = 1  # of the tree; 1: a chain
    lookup: bool = False


GUESSES = {
    "none": Guesses(),
    "none, lookup": Guesses(lookup=True),
    "chain by lead": Guesses("lead"),
    "chain by block": Guesses("block"),
    "tree by block": Guesses("block", LEAVES),
    "chain by drafter": Guesses("drafter"),
    "tree by drafter": Guesses("drafter", LEAVES),
    "tree by drafter, lookup": Guesses("drafter", LEAVES, lookup=True),
}


class SteppedLead:
    """A lead with one session, warmed up."""

    def __init__(
        self, rows: Logits, what: str, sampling: SamplingParams, n_steps: int, watch: Watch | None = None
    ) -> None:
        """Make the lead.

        what: A key of GUESSES.
        """
        self.watch = watch or Watch()
        self._rows, self._sampling = rows, sampling
        self._n_ctx = N_PROMPT + (WARM_UP_STEPS + n_steps) * (DEPTH + 1) + DEPTH + 1
        self._backend = self._drafting = PreparedBackend(rows, self._n_ctx, self.watch)
        self.tokens: list[int] = []  # committed ones
        self._between: Callable[[], None] = lambda: None
        guesses = GUESSES[what]
        limits = Limits(n_batch=prepared.PREPARED_BATCH, draft_max=DEPTH, leaves=guesses.leaves)
        model, inline = self._models(guesses)
        self._proposer = self._make_proposer(guesses, inline)
        self._engine = Engine(model, self._proposer, self._count, n_slots=1, limits=limits, clock=self.watch)
        self._engine.submit(1, GenerationRequest(prepared.prompt_of(rows.shape[1]), sampling))
        while not self.tokens:
            self.step()
        for _ in range(WARM_UP_STEPS):
            self.step()

    def _models(self, guesses: Guesses) -> tuple[Backend, InlineModel | None]:
        """Return the target, and the model that guesses in the lead, if any."""
        if guesses.by not in ("lead", "block"):
            return self._backend, None
        kind = PreparedBackend if guesses.by == "lead" else PreparedBlock
        other = kind(self._rows, self._n_ctx, self.watch, decode_s=lambda n: DRAFT_S, errs=True)
        self._drafting = other
        if isinstance(other, PreparedBlock):
            target = WithBlock(self._backend, other)
            return target, BlockDraft(target, clock=self.watch)
        return self._backend, DraftModel(other, clock=self.watch)

    def _make_proposer(self, guesses: Guesses, inline: InlineModel | None) -> prepared.TimedSpeculator:
        policy = Policy(max_rows=4 + 2 * DEPTH, leaves=guesses.leaves, lookup=guesses.lookup)
        known = {n: prepared.DECODE_S + n * prepared.ROW_S for n in range(1, policy.max_rows + 1)}
        remote = self._drafter(guesses) if guesses.by == "drafter" else None
        times = StepTimes(policy.max_rows, known)
        return prepared.TimedSpeculator(policy, self.watch, remote=remote, inline=inline, times=times)

    def _drafter(self, guesses: Guesses) -> RemoteDrafters:
        card = vocabulary_card(self._backend.vocab)
        drafter = prepared.ScriptedDrafter(Script(self._rows, self._sampling), branches=guesses.leaves > 1)
        presence = Presence("drafter", "drafter", "script", "0", card, 1, host="elsewhere")
        bus = prepared.DirectBus(presence, drafter, drafter.clock)
        lead = Presence("lead", "lead", "prepared", "0", card, 1, host="here")
        remote = RemoteDrafters(bus, lead, max_ahead=2 * DEPTH, clock=self.watch)
        bus.start(remote)
        self._between = bus.draft
        return remote

    def _count(self, _: int, event: Event) -> None:
        if isinstance(event, Committed):
            self.tokens += event.tokens

    def step(self) -> tuple[float, int]:
        """Run a step; return its cost outside decode (watch's unit), and the number of verified guesses."""
        self._between()
        return self.watch.outside(self._engine.step), self._backend.n_rows_last - 1

    def draft(self) -> tuple[float, int]:
        """Run a step; return the cost of drafting in the lead (watch's unit), and the rows it decoded."""
        n_before = self._drafting.n_decodes
        self.step()
        return self._proposer.spent, self._drafting.n_decodes - n_before


def steps(rows: Logits, what: str, sampling: SamplingParams, n_steps: int, watch: Watch) -> Work:
    """Measure steps.

    what: A key of GUESSES.
    """
    lead = SteppedLead(rows, what, sampling, n_steps, watch)
    n_before = len(lead.tokens)
    spent, n_guesses = zip(*(lead.step() for _ in range(n_steps)), strict=True)
    return Work(spent, sum(n_guesses) / n_steps, (len(lead.tokens) - n_before) / n_steps)


def drafts(rows: Logits, what: str, sampling: SamplingParams, n_steps: int, watch: Watch) -> Work:
    """Measure the cost of a row that a model in the lead drafts, as each step's mean.

    what: A key of GUESSES.
    """
    lead = SteppedLead(rows, what, sampling, n_steps, watch)
    n_before = len(lead.tokens)
    drafted = [(spent, n_rows) for spent, n_rows in (lead.draft() for _ in range(n_steps)) if n_rows]
    n_drafts = sum(n_rows for _, n_rows in drafted)
    per_row = [spent / n_rows for spent, n_rows in drafted]
    return Work(per_row, 1.0, (len(lead.tokens) - n_before) / n_drafts)


# -- a drafter ----------------------------------------


class TimedDrafter(ClockedDrafter):
    """A drafter that measures its turns.

    spent: Cost outside decode of each turn with guesses; its model waits meanwhile.
    """

    def __init__(self, backend: PreparedBackend, watch: Watch, shapes: Shapes) -> None:
        super().__init__(backend, R, shapes)
        self.spent: list[float] = []
        self._watch = watch

    def work(self) -> None:
        n_drafted = self.worker.n_drafted
        spent = self._watch.outside(super().work)
        if self.worker.n_drafted > n_drafted:
            self.spent.append(spent)


def turns(rows: Logits, what: str, sampling: SamplingParams, n_turns: int, watch: Watch) -> Work:
    """Measure turns.

    what: A key of SHAPES.
    """
    text = prepared.say(rows, sampling, 2 * (WARM_UP_TURNS + n_turns))
    backend = PreparedBackend(rows, 2 * len(text.tokens), watch, n_seqs=MOST_AT_ONCE + N_BRANCHES)
    drafter = TimedDrafter(backend, watch, SHAPES[what])
    run(drafter, [text], 1)
    n = len(drafter.spent)
    n_committed = len(text.tokens) - text.n_prompt
    spent = drafter.spent[WARM_UP_TURNS:][:n_turns]
    return Work(spent, drafter.worker.n_drafted / n, n_committed / n)


# -- the program ----------------------------------------

STEP, DRAFT, TURN = "step", "draft", "turn"
WHAT = {STEP: tuple(GUESSES), DRAFT: ("chain by block", "tree by block"), TURN: tuple(SHAPES)}
ROWS = {STEP: ("peaked", "flat"), DRAFT: ("peaked", "flat"), TURN: ("falling",)}
MEASURED = {STEP: steps, DRAFT: drafts, TURN: turns}
WAYS = {
    "temperature 0": SamplingParams(temperature=0.0),
    "temperature 1": SamplingParams(1.0, top_k=0, top_p=1.0, min_p=0.0, seed=1),
    "defaults": SamplingParams(seed=1),
}


@dataclass(frozen=True, slots=True)
class Case:
    """A case to measure."""

    unit: str  # STEP, DRAFT or TURN
    what: str  # one of WHAT[unit]
    way: str  # a key of WAYS
    rows: str  # thousands of tokens, and shape of the logits

    def __str__(self) -> str:
        return f"{self.unit}, {self.what}; {self.way}; {self.rows}"

    @property
    def bound_us(self) -> float:
        """The bound of a step, and of a draft at temperature 0; infinite for others."""
        if self.unit == STEP:
            return PLAIN_US if self.what.startswith("none") else DRAFTED_US
        return DRAFT_US if self.unit == DRAFT and self.way == "temperature 0" else float("inf")


def cases(thousands: Sequence[int]) -> list[Case]:
    return [
        Case(unit, what, way, f"{n}k {shape}")
        for unit in WHAT
        for what in WHAT[unit]
        for way in WAYS
        for n in sorted(thousands)
        for shape in ROWS[unit]
    ]


def measure(case: Case, n: int, watch: Watch) -> Work:
    thousands, _, shape = case.rows.partition("k ")
    rows = prepared.make_rows(1000 * int(thousands), shape)
    gc.collect()
    return MEASURED[case.unit](rows, case.what, WAYS[case.way], n, watch)


@dataclass(frozen=True, slots=True)
class Measure:
    """A unit in which costs are shown."""

    name: str
    unit: float  # its size, in seconds or bytecodes
    watch: type[Watch]
    bounded: bool  # True: Case.bound_us applies


MICROSECONDS = Measure("microseconds", 1e-6, Watch, bounded=True)
BYTECODES = Measure("bytecodes", 1.0, BytecodeWatch, bounded=False)


def tables(costs: Mapping[Case, Work], measure: Measure) -> list[str]:
    """Return a markdown table for each unit of work, with a column for each Case.rows."""
    return [
        _table(unit, {case: cost for case, cost in costs.items() if case.unit == unit}, measure)
        for unit in dict.fromkeys(case.unit for case in costs)
    ]


def _table(unit: str, costs: Mapping[Case, Work], measure: Measure) -> str:
    columns = list(dict.fromkeys(case.rows for case in costs))
    lines: list[list[str]] = []
    for what, way in dict.fromkeys((case.what, case.way) for case in costs):
        found = {case.rows: cost for case, cost in costs.items() if (case.what, case.way) == (what, way)}
        bound = Case(unit, what, way, "").bound_us if measure.bounded else float("inf")
        medians = [cost.median / measure.unit for cost in found.values()]
        cells = [f"**{n:.0f}**" if n > bound else f"{n:.0f}" for n in medians]
        n_guesses = statistics.mean(cost.n_guesses for cost in found.values())
        n_committed = statistics.mean(cost.n_committed for cost in found.values())
        lines.append([what, way, f"{n_guesses:.1f}", f"{n_committed:.1f}", *cells])
    heads = ["guesses", "sampling", f"guesses a {unit}", f"tokens a {unit}", *columns]
    return report.table(heads, lines, n_words=2)


def measure_all(args: argparse.Namespace) -> program.Result:
    """Measure all cases and return the section. Raises StartupError."""
    chosen = [case for case in cases(args.vocabularies) if args.only in str(case)]
    if not chosen or args.n < 1:
        raise StartupError("nothing to measure")
    costs, unit = dict[Case, Work](), BYTECODES if args.bytecodes else MICROSECONDS
    for case in chosen:
        costs[case] = measure(case, args.n, unit.watch())
        print(f"{case}: {costs[case].median / unit.unit:.0f} {unit.name}", flush=True)
    what = (
        f"{unit.name.capitalize()} outside decode, medians over {args.n} steps of a lead, each drafted "
        f"row in these, or turns of a drafter, of one session, {N_PROMPT} tokens and more in its context."
    )
    if unit.bounded:
        what += f" Bold: more than {PLAIN_US:.0f} without guesses, {DRAFTED_US:.0f} with,"
        what += f" {DRAFT_US:.0f} for a drafted row at temperature 0."
    return "Python's share", [what, *tables(costs, unit)]


def _parser() -> argparse.ArgumentParser:
    parser = program.make_parser("overhead", "Microseconds of Python in a step, and in a drafter's turn.")
    add = parser.add_argument
    add("--n", type=int, default=300, help="steps or turns of each case")
    add("--vocabularies", type=program.numbers, default=[4, 150], help="thousands of tokens, such as 4,150")
    add("--bytecodes", action="store_true", help="count those: no noise, but not all that takes time")
    add("--only", default="", help="cases with this in their name, as they are printed")
    return parser


main = program.main(_parser, measure_all)

if __name__ == "__main__":
    sys.exit(main())
