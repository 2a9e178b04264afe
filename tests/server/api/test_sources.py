"""Who guessed which token of a reply: the same whole and streamed, and in every route that tells tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from server.api.choices import SourcedText
from server.engine.events import Committed, Finished, Started, Stats
from server.formats.description import Thoughts
from server.formats.reading import MessageReader
from server.text.detokenize import Span
from server.text.message import Content
from server.text.reply_format import ReplyFormat
from tests.contract.contract import validate
from tests.fake_backend import IM_START
from tests.server.api.scripted import Call, Script, services

STARTED, ENDED = Started(5, 2), Finished("stop", Stats(5, 2, 6, 2, 30.0, 50.0))
NAMES = ("drafter-1", "lookup")
THOUGHT = "<think>\nIt is four.\n</think>\n\nThe answer is 4."
FORM = ReplyFormat(Thoughts("<think>", "</think>"))


def steps(tokens: Sequence[int], cuts: Sequence[int]) -> list[Committed]:
    """Return the tokens in steps that end at the cuts.

    The position decides who guessed a token; the last one of a step was guessed by nobody.
    """
    ends = sorted({cut for cut in cuts if 0 < cut < len(tokens)} | {len(tokens)})
    events: list[Committed] = []
    for begin, end in zip([0, *ends], ends, strict=False):
        sources = [NAMES[i % 2] for i in range(begin, end - 1)]
        events.append(Committed(tuple(tokens[begin:end]), (*sources, None), end - begin - 1))
    return events


def answer(events: Sequence[Committed], path: str = "/v1/chat/completions", **body: Any) -> Call:
    asked = (
        {"prompt": "hi"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "hi"}]}
    )
    one = Call(services(Script(STARTED, *events, ENDED)), path=path, body={**asked, **body})
    asyncio.run(asyncio.wait_for(one.run(), 10))
    return one


@given(
    st.lists(st.sampled_from([*b"ab#", 0xC3, 0xA9, 0xF0, 0x9F, IM_START]), min_size=1, max_size=16),
    st.lists(st.integers(0, 16), max_size=6),
    st.sampled_from(["##", "a#", "é", "nothing"]),
)
def test_sources_cover_the_text(tokens: list[int], cuts: list[int], stop: str):
    events = steps(tokens, cuts)
    guessed = [source for event in events for source in event.sources]
    whole = answer(events, return_sources=True, stop=stop).json
    validate("ChatCompletion", whole)
    choice = whole["choices"][0]
    assert "".join(one["text"] for one in choice["sources"]) == choice["message"]["content"]
    assert [one["source"] for one in choice["sources"]] == guessed[: len(choice["sources"])]
    streamed: list[Any] = []
    text = ""
    for chunk in answer(events, return_sources=True, stop=stop, stream=True).events[:-1]:
        validate("ChatCompletionChunk", chunk)
        text += chunk["choices"][0]["delta"].get("content") or ""
        streamed += chunk["choices"][0].get("sources", [])
        assert "".join(one["text"] for one in streamed) in (text, text.rstrip("\ufffd"))
    assert streamed == choice["sources"]


def test_text_completions_tell_them_too():
    events = steps(b"abcdef", [4])
    expected = [
        {"text": letter, "source": source}
        for letter, source in zip(
            "abcdef", ["drafter-1", "lookup", "drafter-1", None, "drafter-1", None], strict=True
        )
    ]
    choice = answer(events, "/v1/completions", return_sources=True).json["choices"][0]
    assert choice["sources"] == expected
    streamed = answer(events, "/v1/completions", return_sources=True, stream=True).events[:-1]
    for chunk in streamed:
        validate("CompletionChunk", chunk)
    assert [one for chunk in streamed for one in chunk["choices"][0].get("sources", [])] == expected


def test_nothing_is_told_unasked():
    choice = answer(steps(b"abc", [])).json["choices"][0]
    assert "sources" not in choice


@given(st.sets(st.integers(1, len(THOUGHT) - 1)), st.booleans())
def test_sources_cover_only_content(cuts: set[int], at_once: bool):
    """A token may contain the end of a marker and the first word of the answer."""
    reader, sourced, spans, content = MessageReader(FORM), SourcedText(), list[Span](), ""
    told: list[dict[str, str | None]] = []
    bounds = [0, *sorted(cuts), len(THOUGHT)]
    for i, (start, end) in enumerate(pairwise(bounds)):
        sourced.commit([str(i)])
        sourced.feed(THOUGHT[start:end])
        pieces = reader.feed(THOUGHT[start:end])
        pieces += reader.end() if end == len(THOUGHT) else []
        content += "".join(piece.text for piece in pieces if isinstance(piece, Content))
        spans.append(Span(i, start, end))
        while spans and spans[0].end <= reader.n_parsed and not (at_once and end < len(THOUGHT)):
            told += sourced.take_sources([spans.pop(0)], reader)
    assert content == "The answer is 4."
    assert "".join(one["text"] or "" for one in told) == content
    first = next(i for i, end in enumerate(bounds[1:]) if end > THOUGHT.index("The"))
    assert [one["source"] for one in told] == [str(i) for i in range(first, len(bounds) - 1)]
