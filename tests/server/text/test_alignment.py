"""Tokens beside the text they are made of."""

from __future__ import annotations

from server.text.alignment import Alignment, Span


def positions(spans: list[Span]) -> list[int]:
    return [span.position for span in spans]


def test_a_token_waits_for_its_whole_text():
    alignment = Alignment()
    alignment.add(0, "ab", unfinished=False)
    alignment.add(1, "c", unfinished=False)
    assert positions(alignment.released(1)) == []
    assert positions(alignment.released(2)) == [0]
    assert positions(alignment.released(3)) == [1]
    assert positions(alignment.released(3)) == []


def test_a_character_in_two_tokens_belongs_to_both():
    alignment = Alignment()
    alignment.add(4, "x", unfinished=True)
    assert positions(alignment.released(1)) == []
    alignment.add(5, "é", unfinished=False)
    assert positions(alignment.released(1)) == []
    assert positions(alignment.released(2)) == [4, 5]


def test_a_token_without_text_follows_the_one_before_it():
    alignment = Alignment()
    alignment.add(0, "ab", unfinished=False)
    alignment.add(1, "", unfinished=False)
    assert positions(alignment.released(1)) == []
    assert positions(alignment.released(2)) == [0, 1]


def test_a_cut_drops_what_is_wholly_beyond_it():
    alignment = Alignment()
    alignment.add(0, "ab", unfinished=False)
    alignment.add(1, "cd", unfinished=False)
    alignment.add(2, "", unfinished=False)
    alignment.add(3, "ef", unfinished=False)
    assert positions(alignment.released(3, cut=True)) == [0, 1]
    assert positions(alignment.released(99)) == []
