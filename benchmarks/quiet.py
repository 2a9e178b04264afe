"""Time Python in a step of many sessions without guesses: `python -m benchmarks.quiet --sessions 56`.

As in benchmarks.overhead, but with text that hardly ever repeats. Either all sources rest, or they are awake:
the proposer is asked, lookups search, a drafter has sessions. If they are awake, the gate is off, since it
would let them rest. Work that a GPU's decode hides does not count.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from itertools import count

import numpy as np

from benchmarks import prepared, program, report
from benchmarks.bytecodes import BytecodeWatch
from benchmarks.prepared import PREPARED_BATCH, PreparedBackend, QuietBus, Watch
from server.engine.engine import Engine
from server.engine.events import Event
from server.engine.request import GenerationRequest
from server.engine.scheduler import Limits
from server.errors import StartupError
from server.llama.backend import Batch, Logits
from server.sampling.params import SamplingParams
from server.speculation.policy import Policy
from server.speculation.sources.remote import RemoteDrafters
from server.speculation.speculator import Speculator
from server.speculation.wire.bus import Listener
from server.speculation.wire.messages import Message
from server.speculation.wire.presence import Presence, vocabulary_card

QUIET_PROMPT_TOKENS = 8  # tokens of a prompt: a step reads them beside up to 56 sessions
QUIET_WARM_UP_STEPS = 40
QUIET_REPLY_TOKENS = 2_000  # of the vocabulary: enough that a session rarely repeats two in a row
GREEDY = SamplingParams(temperature=0.0)
# who is awake
NOBODY, ASKED, LOOKUPS, DRAFTERS = "nobody", "somebody", "lookups", "lookups and a drafter"
AWAKE = (NOBODY, ASKED, LOOKUPS, DRAFTERS)


class RandomBackend(PreparedBackend):
    """A GPU backend that makes a random token the likeliest in each row."""

    overlaps = True

    def __init__(self, n_sessions: int, watch: Watch) -> None:
        super().__init__(np.eye(QUIET_REPLY_TOKENS, dtype=np.float32), 1 << 20, watch, n_seqs=n_sessions)
        self._rng = np.random.default_rng(1)

    def decode(self, batch: Batch) -> Logits:
        if batch.meanwhile is not None:
            self._watch.hidden(batch.meanwhile)
        return super().decode(batch)

    def _row(self, position: int) -> int:
        return int(self._rng.integers(QUIET_REPLY_TOKENS))


class DeafBus(QuietBus):
    """A Bus for a lead whose drafter never answers."""

    def start(self, listener: Listener) -> None: ...
    def send(self, to: str, message: Message) -> None: ...


class QuietLead:
    """A lead with sessions, warmed up."""

    def __init__(self, awake: str, n_sessions: int, watch: Watch, *, prompts: bool) -> None:
        """Make the lead.

        awake: One of AWAKE. prompts: in each step one session ends and another one begins.
        """
        self._rng = np.random.default_rng(0)
        self._watch, self._prompts = watch, prompts
        self._ids, self._live = count(), list[int]()
        self._backend = backend = RandomBackend(n_sessions, watch)
        proposer = _make_proposer(awake, backend, watch)
        limits = Limits(n_batch=PREPARED_BATCH, draft_max=prepared.DEPTH, leaves=1)
        self._engine = Engine(backend, proposer, _ignore, n_slots=n_sessions, limits=limits, clock=watch)
        for _ in range(n_sessions):
            self._begin()
        for _ in range(QUIET_WARM_UP_STEPS):
            self.step()

    def step(self) -> float:
        """Return a step's cost (watch's unit) without the decode and what this hides."""
        if self._prompts:
            self._engine.cancel(self._live.pop(0))
            self._begin()
        return self._watch.outside(self._engine.step)

    @property
    def n_rows(self) -> int:
        """The rows of the latest step."""
        return self._backend.n_rows_last

    def _begin(self) -> None:
        id = next(self._ids)
        self._live.append(id)
        prompt = self._rng.integers(0, QUIET_REPLY_TOKENS, QUIET_PROMPT_TOKENS).tolist()
        self._engine.submit(id, GenerationRequest(prompt, GREEDY))


def _make_proposer(awake: str, backend: PreparedBackend, watch: Watch) -> Speculator:
    lookup = awake in (LOOKUPS, DRAFTERS)
    policy = Policy(lookup=lookup, gate=awake == NOBODY, overlaps=True)
    remote = _drafter(backend, watch) if awake == DRAFTERS else None
    return Speculator(policy, remote=remote, clock=watch)


def _drafter(backend: PreparedBackend, watch: Watch) -> RemoteDrafters:
    card = vocabulary_card(backend.vocab)
    lead = Presence("lead", "lead", "prepared", "0", card, 1, host="here")
    remote = RemoteDrafters(DeafBus(), lead, max_ahead=2 * prepared.DEPTH, clock=watch, overlaps=True)
    remote.peers([Presence("drafter", "drafter", "script", "0", card, 1, host="elsewhere")])
    return remote


def _ignore(_: int, event: Event) -> None: ...


def measure(n_sessions: int, n_steps: int, watch: type[Watch]) -> Mapping[str, Sequence[float]]:
    """Return a step's median costs by who is awake: without prompts, with prompts.

    The leads take turns, step by step.
    """
    kinds = [(awake, prompts) for awake in AWAKE for prompts in (False, True)]
    leads = [QuietLead(awake, n_sessions, watch(), prompts=prompts) for awake, prompts in kinds]
    spent = [[lead.step() for lead in leads] for _ in range(n_steps)]
    medians = [statistics.median(column) for column in zip(*spent, strict=True)]
    return {awake: medians[2 * i : 2 * i + 2] for i, awake in enumerate(AWAKE)}


def measure_all(args: argparse.Namespace) -> program.Result:
    """Measure every case and return the section. Raises StartupError."""
    if not 0 < args.sessions <= PREPARED_BATCH - QUIET_PROMPT_TOKENS or args.n < 1:
        raise StartupError(f"--sessions: 1 to {PREPARED_BATCH - QUIET_PROMPT_TOKENS}, --n: 1 or more")
    name, unit, watch = ("bytecodes", 1.0, BytecodeWatch) if args.bytecodes else ("microseconds", 1e-6, Watch)
    found = measure(args.sessions, args.n, watch)
    lines = [[awake, *[f"{spent / unit:.0f}" for spent in medians]] for awake, medians in found.items()]
    what = f"{name.capitalize()} outside the decode, medians over {args.n} steps of {args.sessions} sessions."
    return "Python of quiet steps", [what, report.table(["awake", "no prompt", "a prompt"], lines)]


def _parser() -> argparse.ArgumentParser:
    parser = program.make_parser("quiet", "Microseconds of Python in a step without guesses.")
    add = parser.add_argument
    add(
        "--sessions",
        type=int,
        default=PREPARED_BATCH - QUIET_PROMPT_TOKENS,
        help="that decode, with what reads a prompt",
    )
    add("--n", type=int, default=300, help="steps of each case")
    add("--bytecodes", action="store_true", help="count those: no noise, but not all that takes time")
    return parser


main = program.main(_parser, measure_all)

if __name__ == "__main__":
    sys.exit(main())
