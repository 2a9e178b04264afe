"""Stop strings over pieces of text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.text.guard import GUARD
from server.text.stops import StopStrings


def run(stops: Sequence[str], pieces: Iterable[str]) -> tuple[list[str], bool]:
    """Return what is sent after each piece and at the end, and whether a stop string came."""
    strings = StopStrings(stops)
    sent: list[str] = []
    pending = ""
    for piece in pieces:
        pending += piece
        n = strings.n_emittable(pending, whole=False)
        sent.append(pending[:n])
        pending = pending[n:]
        if strings.found is not None:
            return sent, True
    return [*sent, pending], False


def expected(stops: Sequence[str], text: str) -> tuple[str, bool]:
    """Return the text and whether it stops, by definition: the first stop string to end, or the longest."""
    for end in range(len(text) + 1):
        ending = [s for s in stops if s and text[:end].endswith(s)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


@pytest.mark.parametrize(
    ("stops", "pieces", "sent", "stopped"),
    [
        ((), ["any", "thing"], ["any", "thing", ""], False),
        (("",), ["any"], ["any", ""], False),
        (("STOP",), ["go ST", "OP on"], ["go ", ""], True),
        (("STOP",), ["a ST", "ART"], ["a ", "START", ""], False),
        (("STOP",), ["one STOP two"], ["one "], True),
        (("STOP",), ["at the end S"], ["at the end ", "S"], False),
        (("aab",), ["a", "a", "a", "b"], ["", "", "a", ""], True),
        (("\n\n", "User:"), ["x\n", "User", ":"], ["x", "\n", ""], True),
        (("bc", "abcd"), ["a", "b", "c", "d"], ["", "", "a"], True),
        (("bc", "abc"), ["xabc"], ["x"], True),
        (("é",), ["caf", "é"], ["caf", ""], True),
    ],
)
def test_only_possible_stop_is_held(stops: Sequence[str], pieces: list[str], sent: list[str], stopped: bool):
    assert run(stops, pieces) == (sent, stopped)


@given(
    st.lists(st.text("ab", max_size=4), max_size=3),
    st.lists(st.text("abc", max_size=1), max_size=30),
)
def test_character_by_character_it_is_the_definition(stops: list[str], pieces: list[str]):
    sent, stopped = run(stops, pieces)
    assert ("".join(sent), stopped) == expected(stops, "".join(pieces))


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.text("abc", max_size=4), max_size=12),
)
def test_impossible_stop_holds_nothing(stops: list[str], pieces: list[str]):
    strings = StopStrings(stops)
    held = ""
    for piece in pieces:
        held += piece
        n = strings.n_emittable(held, whole=False)
        if strings.found is not None:
            return
        held = held[n:]
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)
    assert strings.n_emittable(held, whole=True) == len(held)


def test_guard_is_not_text():
    strings = StopStrings(["</b>", "X"])
    assert strings.n_emittable(f"a</b{GUARD}", whole=False) == 1
    assert strings.n_emittable(f"a<{GUARD}>bX", whole=False) == 5
    assert strings.found == "X"
