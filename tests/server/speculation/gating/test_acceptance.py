"""How often guesses come true, per session and in all of them together."""

from __future__ import annotations

from server.speculation.gating.acceptance import MAX_SOURCES, SUREST, Acceptance, SessionAcceptance


def test_what_a_session_learns_all_learn():
    everybody = Acceptance()
    session = SessionAcceptance(everybody)
    for _ in range(200):
        session.observe_best("drafter", 255, False)
        session.observe("drafter", 255, False)
    assert everybody.mean("drafter") < 0.05
    assert everybody.probability("drafter", 255) < 0.05
    assert SessionAcceptance(everybody).mean("drafter") < 0.05


def test_and_also_after_so_many_sources_that_they_were_forgotten():
    everybody = Acceptance()
    session = SessionAcceptance(everybody)
    session.observe_best("drafter", 255, True)
    for i in range(MAX_SOURCES):
        everybody.mean(f"another {i}")
    for _ in range(200):
        session.observe_best("drafter", 255, False)
    assert everybody.mean("drafter") < 0.05


def test_a_session_learns_its_level_from_guesses_of_any_confidence():
    everybody = Acceptance()
    for _ in range(500):
        everybody.observe("drafter", 255, True)
        everybody.observe("drafter", 100, True)
    hard = SessionAcceptance(everybody)
    for _ in range(12):
        hard.observe("drafter", 100, False)
    assert hard.probability("drafter", 255) < 0.4
    assert SessionAcceptance(everybody).probability("drafter", 255) > 0.9


def test_a_text_of_which_more_is_right_than_usual_is_never_certain():
    session = SessionAcceptance(Acceptance())
    for _ in range(100):
        session.observe("drafter", 130, True, best=True)
    assert session.probability("drafter", 130) == session.mean("drafter") == SUREST


def test_a_session_has_its_own_share_of_sure_guesses():
    session = SessionAcceptance(Acceptance())
    for _ in range(100):
        session.observe("drafter", 10, False, best=True)
    sure, unsure = session.outlook("drafter")
    assert sure.share < 0.05
    assert unsure.share == 1.0 - sure.share
    assert unsure.acceptance < 0.05
