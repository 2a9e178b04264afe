"""A schedule of faults from a seed, played to a live system, and what must hold after it."""

from __future__ import annotations

import re
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from random import Random
from typing import cast

from tests.chaos.clients import Client, Seen, alone, ask
from tests.chaos.faults import FAULTS, Fault
from tests.chaos.system import CALM_S, Program, System
from tests.process.duo import until

BEGIN_S, LAST_S = 1.5, 2.5  # a fault begins within the first, and lasts at most the second
N_FAULTS, N_CLIENTS = (2, 5), 3
GROWN = 48 << 20  # bytes by which a process may be larger than it was before any fault


@dataclass(frozen=True, slots=True)
class Turn:
    """A fault from at_s to ends_s, with a seed for its own choices."""

    at_s: float
    ends_s: float
    fault: Fault
    seed: int


def schedule(seed: int) -> list[Turn]:
    """Return the faults in order of beginning; those of one target do not overlap."""
    chance = Random(seed)
    turns: list[Turn] = []
    for fault in chance.sample(FAULTS, chance.randint(*N_FAULTS)):
        at_s = chance.uniform(0, BEGIN_S)
        ends_s = at_s + chance.uniform(0.02, LAST_S)
        turn = Turn(at_s, ends_s, fault, chance.randrange(1 << 30))
        if all(one.fault.target != fault.target for one in turns):
            turns.append(turn)
    return sorted(turns, key=lambda turn: turn.at_s)


@dataclass(slots=True)
class Chaos:
    """A live system with the replies of a quiet lead.

    n_asked: replies compared so far. n_accepted: guesses of drafters accepted in them. seconds: the time of
    each.
    """

    system: System
    expected: list[Seen] = field(default_factory=list[Seen])
    n_asked: int = 0
    n_accepted: int = 0
    seconds: list[float] = field(default_factory=list[float])
    _usual: dict[int, tuple[Counter[str], int]] = field(default_factory=dict[int, "tuple[Counter[str], int]"])

    def warm_up(self) -> None:
        """Learn the right replies and the size of idle processes."""
        self.expected = alone(self.system.port)
        problems = self.play([])
        assert not problems, problems

    def play(self, turns: list[Turn]) -> list[str]:
        """Run the schedule and return the rules broken during and after it."""
        n_logged = len(self.system.lead.log)
        self.system.lead_ended = any(turn.fault.ends_lead for turn in turns)
        clients = [Client(self.system, self.expected, Random(i)) for i in range(N_CLIENTS)]
        problems: list[str] = []
        try:
            try:
                self._follow(turns)
                self.system.until_whole()
            finally:
                problems += self._stop(clients)
            self._audit()
        except Exception as error:  # whatever it is, it belongs to this seed
            problems.append(f"{type(error).__name__}: {error}")
        return problems + self._misreported(turns, self.system.lead.log[n_logged:])

    def _stop(self, clients: list[Client]) -> list[str]:
        """Stop the clients and return their problems."""
        for client in clients:
            client.stop()
            self.n_asked += client.n_asked
            self.n_accepted += client.n_accepted
            self.seconds += client.seconds
        return [problem for client in clients for problem in client.problems]

    def _follow(self, turns: list[Turn]) -> None:
        began, log, n_logged = time.monotonic(), self.system.lead.log, len(self.system.lead.log)
        moments = [(turn.at_s, turn, True) for turn in turns] + [(turn.ends_s, turn, False) for turn in turns]
        with ExitStack() as left:  # heals what is still there if a fault cannot be applied
            heals: dict[str, ExitStack] = {}
            for at_s, turn, begins in sorted(moments, key=lambda moment: moment[0]):
                time.sleep(max(0.0, began + at_s - time.monotonic()))
                if begins:
                    heals[turn.fault.name] = left.enter_context(ExitStack())
                    heals[turn.fault.name].callback(turn.fault.apply(self.system, Random(turn.seed)))
                    continue
                if turn.fault.till_told and _lead_lives(turns):
                    until(lambda: _sent(turn.fault, log[n_logged:]), CALM_S, "an outage is not told")  # noqa: B023
                heals[turn.fault.name].close()

    def _audit(self) -> None:
        """Check the idle system. Raises AssertionError."""
        system = self.system
        until(self._drafts_count, CALM_S, "no guess of a drafter is accepted any more")
        system.until_idle()
        until(lambda: system.get("/check") == {"fault": ""}, CALM_S, f"the lead says {system.get('/check')}")
        for program in system.programs.values():
            self._compare(program)
        keys = cast(list[bytes], system.client.keys())
        assert not [key for key in keys if system.client.ttl(key) == -1], "a key without a time to live"

    def _compare(self, program: Program) -> None:
        """Compare a program with its first idle state. Raises AssertionError."""
        usual, size = self._usual.setdefault(program.pid, (program.footprint(), program.memory()))
        what = f"{program.name} has {program.footprint()}, more than {usual}"
        until(lambda: program.footprint() <= usual, CALM_S, what)
        grown = program.memory() - size
        assert grown < GROWN, f"{program.name} has grown by {grown >> 20} MiB"

    def _drafts_count(self) -> bool:
        """Return True if a drafter's guess is accepted again."""
        seen, n_accepted = ask(self.system.port, 0)
        assert seen == self.expected[0], f"{seen} instead of {self.expected[0]}"
        return n_accepted > 0

    def _misreported(self, turns: list[Turn], lines: list[str]) -> list[str]:
        """Return what the lead's log lacks or says too much.

        A fault is logged once, not at each attempt.
        """
        text = "\n".join(lines)
        found = ["a traceback:\n" + text] if "Traceback" in text else []
        if not _lead_lives(turns):
            return found
        links = "".join(re.findall("(lost|back)", " ".join(line for line in lines if "Redis server" in line)))
        if "lostlost" in links:
            found.append(f"an outage is told again and again:\n{text}")
        untold = [turn.fault for turn in turns if not _sent(turn.fault, lines)]
        return found + [f"the log does not say {fault.says!r}:\n{text}" for fault in untold]


def _lead_lives(turns: list[Turn]) -> bool:
    """Return True if the lead runs throughout; a stopped one may miss what passes."""
    return all(turn.fault.target != "lead" for turn in turns)


def _sent(fault: Fault, lines: list[str]) -> bool:
    return re.search(fault.says, "\n".join(lines)) is not None
