"""Prompts get the spelling that was generated, as far as it is known."""

from __future__ import annotations

from server.text.rewritten import Rewritten


def test_the_longest_beginning_that_is_known_counts():
    rewritten = Rewritten()
    rewritten.learn("Q1 A1", "Q1 a 1", "")
    rewritten.learn("Q1 A1 Q2 A2", "Q1 a 1 Q2 a 2", "")
    rewritten.learn("Q1 B", "Q1 b", "")
    assert rewritten.as_generated("Q1 A1 Q2 A2 Q3", "") == "Q1 a 1 Q2 a 2 Q3"
    assert rewritten.as_generated("Q1 A1 Q2 A", "") == "Q1 a 1 Q2 A"
    assert rewritten.as_generated("Q1 A", "") == "Q1 A"


def test_salts_never_meet():
    rewritten = Rewritten()
    rewritten.learn("Q A", "Q a", "mine")
    rewritten.learn("Q A", "Q b", "theirs")
    assert [rewritten.as_generated("Q A!", salt) for salt in ("mine", "theirs", "")] == [
        "Q a!",
        "Q b!",
        "Q A!",
    ]


def test_new_pair_replaces_old():
    rewritten = Rewritten()
    rewritten.learn("Q A", "Q a", "")
    rewritten.learn("Q A", "Q aa", "")
    assert rewritten.as_generated("Q A", "") == "Q aa"
    assert rewritten.n_characters == len("Q A" + "Q aa")


def test_the_pair_least_recently_used_is_forgotten():
    rewritten = Rewritten(most_characters=12)
    rewritten.learn("A1", "a1", "x")
    rewritten.learn("A2", "a2", "y")
    rewritten.learn("A3", "a3", "x")
    assert rewritten.as_generated("A1", "x") == "a1"
    rewritten.learn("A4", "a4", "x")
    found = [rewritten.as_generated(f"A{n}", salt) for n, salt in ((1, "x"), (2, "y"), (3, "x"), (4, "x"))]
    assert found == ["a1", "A2", "a3", "a4"]
    assert rewritten.n_characters == 12


def test_excess_pair_is_dropped():
    rewritten = Rewritten(most_characters=3)
    rewritten.learn("A1", "a1", "")
    assert rewritten.as_generated("A1", "") == "A1"
    assert rewritten.n_characters == 0
