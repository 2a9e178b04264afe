"""Where a GPU decodes, the proposer is told that there is time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from server.engine.engine import MANY_SESSIONS
from server.engine.proposer import OpenedSession, Plan, Step, Upcoming
from server.llama.backend import Batch, Logits
from tests.fake_backend import FakeBackend, FakeModel
from tests.support import PROMPT, Harness, OracleProposer, request

ENDLESS = FakeModel(eog_rate=0.0)
PROMPTS = (PROMPT, PROMPT[::-1])


class Watched(OracleProposer):
    """A proposer that records what it is told, and when."""

    def __init__(self) -> None:
        super().__init__([], wrong_every=0)
        self.told: list[str] = []

    def open(self, session: OpenedSession) -> None:
        super().open(session)
        self.told.append("open")

    def plan(self, step: Upcoming) -> Plan:
        if step.n_rows:
            self.told.append("plan")
        return super().plan(step)

    def learn(self, step: Step) -> None:
        self.told.append("learn")

    def meanwhile(self, plan: Plan, *, decodes: bool = True) -> None:
        self.told.append("meanwhile" if decodes else "before")


class Decoding(FakeBackend):
    """A backend that records when decodes begin and end."""

    def __init__(self, say: Callable[[str], None], *, overlaps: bool) -> None:
        super().__init__(ENDLESS, overlaps=overlaps)
        self._say = say

    def decode(self, batch: Batch) -> Logits:
        self._say("decode")
        logits = super().decode(batch)
        self._say("decoded")
        return logits


def told(overlaps: bool, n_requests: int) -> str:
    watched = Watched()
    backend = Decoding(watched.told.append, overlaps=overlaps)
    Harness(backend, proposer=watched, n_slots=1).run(
        *(request(prompt=PROMPTS[i], max_tokens=3) for i in range(n_requests))
    )
    return " ".join(watched.told)


def test_a_cpu_learns_after_each_step():
    step = "plan decode decoded learn"
    assert told(False, 1) == f"open {step} {step} {step}"
    assert "meanwhile" not in told(False, 2)


def test_a_gpu_hides_learning():
    first, later = "plan decode meanwhile decoded", "plan decode meanwhile learn decoded"
    assert told(True, 1) == f"open {first} {later} {later} learn"
    assert told(True, 2).count("meanwhile") == told(True, 2).count("learn") == 6


@pytest.mark.parametrize("n_sessions", [MANY_SESSIONS, MANY_SESSIONS + 1])
def test_many_sessions_hand_over_first(n_sessions: int):
    watched = Watched()
    backend = Decoding(watched.told.append, overlaps=True)
    backend.n_seqs = n_sessions
    prompts = [(*PROMPT[:4], i) for i in range(n_sessions)]
    harness = Harness(backend, proposer=watched, n_slots=n_sessions)
    harness.run(*(request(prompt=prompt, max_tokens=3) for prompt in prompts))
    assert ("before decode" in " ".join(watched.told)) is (n_sessions > MANY_SESSIONS)
