"""How often guesses come true, per session and in all of them together."""

from __future__ import annotations

import tracemalloc

from server.speculation.hits import MAX_SOURCES, MEAN, SUREST, HitRates, SessionHitRates
from server.speculation.wire.roster import MAX_PEERS


def test_sessions_share_what_they_learn():
    everybody = HitRates()
    session = SessionHitRates(everybody)
    for _ in range(200):
        session.observe_best("drafter", 255, False)
        session.observe("drafter", 255, False)
    assert everybody.mean("drafter") < 0.05
    assert everybody.probability("drafter", 255) < 0.05
    assert SessionHitRates(everybody).mean("drafter") < 0.05


def test_forgotten_sources_are_learned_again():
    everybody = HitRates()
    session = SessionHitRates(everybody)
    session.observe_best("drafter", 255, True)
    for i in range(MAX_SOURCES):
        everybody.mean(f"another {i}")
    for _ in range(200):
        session.observe_best("drafter", 255, False)
    assert everybody.mean("drafter") < 0.05


def test_used_source_is_remembered():
    everybody = HitRates()
    for _ in range(200):
        everybody.observe_best("drafter", 255, False)
    learnt = everybody.mean("drafter")
    for i in range(4 * MAX_SOURCES):
        everybody.observe(f"another {i}", 255, True, best=True)
        if i % (MAX_SOURCES - 1) == 0:
            assert everybody.mean("drafter") == learnt


def test_known_sources_fit_the_bound():
    everybody = HitRates()
    for i in range(3 * MAX_SOURCES):
        everybody.observe(f"gone {i}", 255, False, best=True)
    for i in range(MAX_PEERS):
        everybody.observe(f"here {i}", 255, False, best=True)
    assert all(everybody.mean(f"here {i}") < MEAN for i in range(MAX_PEERS))


def test_vanished_names_stay_bounded():
    everybody = HitRates()
    tracemalloc.start()
    try:
        for i in range(6 * MAX_SOURCES):
            for confidence in range(0, 256, 24):
                everybody.observe(f"drafter-{i}-{i:04x}", confidence, True, best=True)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1 << 18


def test_any_confidence_teaches_session_level():
    everybody = HitRates()
    for _ in range(500):
        everybody.observe("drafter", 255, True)
        everybody.observe("drafter", 100, True)
    hard = SessionHitRates(everybody)
    for _ in range(12):
        hard.observe("drafter", 100, False)
    assert hard.probability("drafter", 255) < 0.4
    assert SessionHitRates(everybody).probability("drafter", 255) > 0.9


def test_good_text_is_never_certain():
    session = SessionHitRates(HitRates())
    for _ in range(100):
        session.observe("drafter", 130, True, best=True)
    assert session.probability("drafter", 130) == session.mean("drafter") == SUREST


def test_session_has_own_sure_share():
    session = SessionHitRates(HitRates())
    for _ in range(100):
        session.observe("drafter", 10, False, best=True)
    share_sure, _, unsure = session.outlook("drafter")
    assert share_sure < 0.05
    assert unsure < 0.05
