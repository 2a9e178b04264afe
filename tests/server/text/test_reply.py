"""One reply's text and what is counted for it, a stop string in the middle of a step included."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from server.engine.events import Committed, DrafterCount, Stats
from server.formats.reading import MessageReader
from server.text.message import Piece, folded
from server.text.reply import ReplyText
from server.text.reply_format import PLAIN, ReplyFormat
from tests.fake_backend import IM_END, FakeVocabulary


class PrintableEnd(FakeVocabulary):
    """A vocabulary whose end-of-turn token is not marked as a control token."""

    def piece(self, token: int, *, special: bool = False) -> bytes:
        return super().piece(token, special=True)


class Reply(ReplyText):
    """A reply whose request asks for content only."""

    def __init__(self, vocabulary: FakeVocabulary, stops: Sequence[str], form: ReplyFormat = PLAIN) -> None:
        super().__init__(vocabulary, MessageReader(form, stops=stops))

    def says(self, step: Committed) -> str:
        return content(self.feed(step))


def content(pieces: list[Piece]) -> str:
    return folded(pieces).content


def step(text: str, *sources: str | None, n_drafted: int = 0) -> Committed:
    tokens = tuple(text.encode())
    return Committed(tokens, (*sources, *[None] * (len(tokens) - len(sources))), n_drafted)


def stats(**drafters: DrafterCount) -> Stats:
    """Return the stats of an engine that ran on for some steps after the end of the text."""
    n_drafted = sum(count.drafted for count in drafters.values())
    n_accepted = sum(count.accepted for count in drafters.values())
    return Stats(4, 1, 99, 50, 1.0, 2.0, n_drafted, n_accepted, drafters)


def test_reply_counts_like_the_engine():
    reply = Reply(FakeVocabulary(), ())
    assert reply.says(step("ab", "d", n_drafted=3)) == "ab"
    assert reply.says(step("c")) == "c"
    assert content(reply.end("stop")) == ""
    counted = reply.stats(stats(d=DrafterCount(3, 1)))
    assert (counted.n_predicted, counted.n_steps, counted.n_drafted, counted.n_accepted) == (3, 2, 3, 1)
    assert counted.drafters == {"d": DrafterCount(3, 1)}
    assert (counted.n_prompt, counted.n_cached) == (4, 1)


@pytest.mark.parametrize(
    ("text", "sent", "n_tokens", "n_accepted"),
    [("abXYcde", "ab", 4, 4), ("XYabcde", "", 2, 2), ("abcdeXY", "abcde", 7, 6)],
)
def test_stop_string_cuts_accepted_run(text: str, sent: str, n_tokens: int, n_accepted: int):
    reply = Reply(FakeVocabulary(), ["XY"])
    assert reply.says(step("go ")) == "go "
    assert reply.says(step(text, *["d"] * 6, n_drafted=6)) == sent
    assert reply.stopped
    assert reply.n_predicted == 3 + n_tokens
    assert content(reply.end("stop")) == ""
    counted = reply.stats(stats(d=DrafterCount(40, 30)))
    assert (counted.n_predicted, counted.n_accepted) == (3 + n_tokens, n_accepted)
    assert (counted.n_steps, counted.n_drafted) == (2, 6)
    assert counted.drafters == {"d": DrafterCount(6, n_accepted)}


def test_stop_string_spans_steps():
    reply = Reply(FakeVocabulary(), ["XY"])
    assert reply.says(step("abX", "d", "e", n_drafted=2)) == "ab"
    assert not reply.stopped
    assert reply.says(step("Yz", "e", "e", n_drafted=2)) == ""
    assert reply.stopped
    assert reply.n_predicted == 4
    counted = reply.stats(stats(d=DrafterCount(1, 1), e=DrafterCount(3, 3)))
    assert (counted.n_drafted, counted.n_accepted) == (4, 3)
    assert {name: count.accepted for name, count in counted.drafters.items()} == {"d": 1, "e": 2}


def test_held_text_comes_last():
    reply = Reply(FakeVocabulary(), ["XY"])
    assert reply.says(step("aX")) == "a"
    assert content(reply.end("stop")) == "X"


def test_unfinished_character_becomes_replacement():
    reply = Reply(FakeVocabulary(), ["XY"])
    assert reply.says(Committed((ord("X"), 0xC3), (None, None))) == ""
    assert content(reply.end("stop")) == "X\ufffd"


@pytest.mark.parametrize("vocabulary", [FakeVocabulary(), PrintableEnd()])
def test_stop_token_counts_without_text(vocabulary: FakeVocabulary):
    reply = Reply(vocabulary, ())
    assert reply.says(Committed((ord("a"), IM_END), (None, "d"), 1)) == "a"
    assert content(reply.end("stop")) == ""
    assert reply.n_predicted == 2


@pytest.mark.parametrize(("text", "reason"), [("abX", "length"), ("abXY", "stop")])
def test_a_stop_string_outranks_the_length(text: str, reason: str):
    reply = Reply(FakeVocabulary(), ["XY"])
    reply.feed(step(text))
    reply.end("length")
    assert reply.finish_reason("length") == reason
    assert reply.finish_reason("stop") == "stop"
