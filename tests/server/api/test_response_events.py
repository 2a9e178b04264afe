"""Items of a response and the events that tell of them, however the reply is cut."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.api.responses.response_events import Event, Output
from server.text.message import Arguments, CallStart, Content, Piece, Reasoning, coalesced
from tests.contract.contract import validate

THOUGHT = [Reasoning("two "), Reasoning("cities")]
CALLS = [CallStart(0, "call_a", "f"), Arguments(0, '{"x":'), Arguments(0, "1}"), CallStart(1, "call_b", "g")]


def output() -> Output:
    numbers = itertools.count()
    return Output(id_of=lambda kind: f"{kind}_{next(numbers)}")


def told(
    one: Output, *portions: list[Piece], logprobs: list[Any] | None = None, status: Any = "completed"
) -> list[Event]:
    events: list[Event] = []
    for pieces in portions:
        events += one.feed(pieces, logprobs or ())
    events += one.end(status)
    for number, event in enumerate(events):
        validate("ResponseEvent", {**event, "sequence_number": number})
    for item in one.items:
        validate("OutputItem", item)
    return events


def names(events: list[Event]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


MESSAGE = [
    "output_item.added",
    "content_part.added",
    "output_text.delta",
    "output_text.done",
    "content_part.done",
]


def test_text_is_one_message_item():
    one = output()
    events = told(one, [Content("hello ")], [Content("there")])
    assert names(events) == [*MESSAGE[:3], *MESSAGE[2:], "output_item.done"]
    [item] = one.items
    assert item["content"][0]["text"] == "hello there"
    assert item["status"] == "completed"
    assert events[0]["item"] == {**item, "content": [], "status": "in_progress"}
    assert events[1]["part"]["text"] == ""
    assert {event["item_id"] for event in events if "item_id" in event} == {"msg_0"}


def test_thoughts_text_and_calls_are_items():
    one = output()
    events = told(one, [*THOUGHT, Content("Let us see.")], [*CALLS])
    assert [item["type"] for item in one.items] == ["reasoning", "message", "function_call", "function_call"]
    assert [item["status"] for item in one.items] == ["completed"] * 4
    assert one.items[0]["content"] == [{"type": "reasoning_text", "text": "two cities"}]
    assert [(i["call_id"], i["name"], i["arguments"]) for i in one.items[2:]] == [
        ("call_a", "f", '{"x":1}'),
        ("call_b", "g", ""),
    ]
    kinds = names(events)
    assert kinds.count("output_item.added") == kinds.count("output_item.done") == 4
    assert kinds.count("reasoning_text.done") == kinds.count("output_text.done") == 1
    assert kinds.count("function_call_arguments.done") == 2
    indices = [event["output_index"] for event in events]
    assert indices == sorted(indices)


def test_empty_reply_is_empty_message():
    one = output()
    assert names(told(one)) == [*MESSAGE[:2], *MESSAGE[3:], "output_item.done"]
    assert one.items[0]["content"][0]["text"] == ""


def test_only_the_last_item_is_incomplete():
    one = output()
    told(one, [*THOUGHT], [Content("and s")], status="incomplete")
    assert [item["status"] for item in one.items] == ["completed", "incomplete"]


def entry(token: str) -> dict[str, Any]:
    alike = {"token": token, "logprob": -0.5, "bytes": list(token.encode()) or None}
    return {**alike, "top_logprobs": [alike]}


def test_logprobs_repeat_at_the_end():
    one = output()
    events = told(one, [Content("ab")], logprobs=[entry("a"), entry("b")])
    delta = next(event for event in events if event["type"].endswith("delta"))
    done = next(event for event in events if event["type"].endswith("text.done"))
    assert [told["token"] for told in delta["logprobs"]] == ["a", "b"]
    assert delta["logprobs"] == done["logprobs"] == one.items[0]["content"][0]["logprobs"]


def test_final_logprobs_are_kept():
    one = output()
    events = [*one.feed([Content("a")], [entry("a")]), *one.feed([], [entry("")]), *one.end("completed")]
    done = next(event for event in events if event["type"].endswith("text.done"))
    assert [(told["token"], told["bytes"]) for told in done["logprobs"]] == [("a", [97]), ("", [])]


PIECES = st.lists(
    st.one_of(
        st.builds(Content, st.text(min_size=1, max_size=3)),
        st.builds(Reasoning, st.text(min_size=1, max_size=3)),
    ),
    max_size=6,
)


@given(PIECES, st.lists(st.integers(0, 3), max_size=4), st.sampled_from(["completed", "incomplete"]))
def test_chunking_does_not_change_items(pieces: list[Piece], cuts: list[int], status: Any):
    whole, cut = output(), output()
    told(whole, coalesced([*pieces, *CALLS]), status=status)
    portions = [[piece] for piece in [*pieces, *CALLS]] + [[] for _ in cuts]
    events = told(cut, *portions, status=status)
    assert cut.items == whole.items
    texts = {"": ""}
    for event in events:
        if event["type"].endswith(".delta"):
            texts[event["item_id"]] = texts.get(event["item_id"], "") + event["delta"]
    for item in cut.items:
        text = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert texts.get(item["id"], "") == text


@pytest.mark.parametrize("kind", ["reasoning", "message"])
def test_finished_item_never_changes(kind: str):
    one = output()
    piece = Reasoning("a") if kind == "reasoning" else Content("a")
    first, second = list(one.feed([piece]))[:2]
    before = (str(first), str(second))
    list(one.feed([piece]))
    assert (str(first), str(second)) == before
