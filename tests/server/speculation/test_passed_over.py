"""Sessions for which nobody guesses, or no guess can pay, are passed over together."""

from __future__ import annotations

import pytest

from server.engine.proposer import OpenedSession
from server.engine.request import Speculation
from server.speculation.policy import Policy
from server.speculation.sources.synchronous import Synchronous
from server.speculation.speculator import Speculator
from tests.server.speculation.test_speculator import Scene
from tests.support import PROMPT, request


def test_sessions_are_not_asked_about_while_nobody_guesses():
    speculator = Speculator(Policy(lookup=False))
    assert speculator.passes(4, 4)
    tokens = list(PROMPT)
    speculator.open(OpenedSession(1, tokens, request().sampling, Speculation(prediction=(1, 2))))
    assert not speculator.passes(1, 1), "the client expects a reply"
    speculator.close(1, keep=False)
    assert speculator.passes(1, 1)
    assert not Speculator(Policy()).passes(1, 1), "lookups guess until they were tried"
    assert not Speculator(Policy(lookup=False, gate=False)).passes(1, 1)


@pytest.mark.parametrize("error", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("n_sessions", [1, 2, 4])
def test_no_guess_is_missed_where_all_sessions_are_passed_over_together(
    n_sessions: int, error: float, monkeypatch: pytest.MonkeyPatch
):
    def may_pay(*_: object) -> bool:
        return True

    def widths() -> list[int]:
        scene = Scene(error=error, row_s=0.1, policy=Policy(lookup=False))
        for i in range(3):
            asks = [request((*PROMPT * (1 + j % 3), i, j), max_tokens=60) for j in range(n_sessions)]
            scene.harness.run(*asks)
        return scene.target.widths

    quick = widths()
    monkeypatch.setattr(Synchronous, "_may_pay", may_pay)
    assert widths() == quick


def test_no_session_is_followed_for_guesses_that_are_not_worth_making():
    """A guess pays if eight sessions share its time, not for the one whose prompt was read first. To read
    what is new of it, two rows at a time, would bring nothing."""
    scene = Scene(error=0.3, row_s=0.02, td_s=0.5, policy=Policy(lookup=False))
    scene.harness.run(*(request((*PROMPT, i), max_tokens=80) for i in range(8)))
    assert scene.drafts.widths[0] == len(PROMPT) + 1
    assert scene.drafts.widths.count(2) <= 2
