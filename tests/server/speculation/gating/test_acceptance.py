"""How often guesses come true, per session and in all of them together."""

from __future__ import annotations

from server.speculation.gating.acceptance import MAX_SOURCES, Acceptance


def test_what_a_session_learns_all_learn():
    everybody = Acceptance()
    session = Acceptance(everybody)
    for _ in range(200):
        session.observe_best("drafter", 255, False)
        session.observe("drafter", 255, False)
    assert everybody.mean("drafter") < 0.05
    assert everybody.probability("drafter", 255) < 0.05
    assert Acceptance(everybody).mean("drafter") < 0.05


def test_and_also_after_so_many_sources_that_they_were_forgotten():
    everybody = Acceptance()
    session = Acceptance(everybody)
    session.observe_best("drafter", 255, True)
    for i in range(MAX_SOURCES):
        everybody.mean(f"another {i}")
    for _ in range(200):
        session.observe_best("drafter", 255, False)
    assert everybody.mean("drafter") < 0.05
