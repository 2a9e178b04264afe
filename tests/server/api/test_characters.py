"""Texts whose characters have several tokens, streamed and whole, in several choices at once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.http_lead import Lead
from tests.server.api.test_odd_inputs import BODY, post, text_of

TEXT = "日本語 😀 é👩‍🚀!"
FORCED: dict[str, Any] = {
    **BODY,
    "max_tokens": 100,
    "grammar": f'root ::= "{TEXT}"',
    "n": 4,
    "logprobs": True,
}


NO_LOGPROBS: dict[str, Any] = {"content": []}


def streamed(lead: Lead, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the choices of all chunks."""
    lines = post(lead, {**body, "stream": True}).text.splitlines()
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    return [choice for chunk in chunks for choice in chunk["choices"]]


def test_characters_of_several_tokens_come_whole(lead: Lead):
    """Every byte is a token of the toy; four choices are streamed at once."""
    texts: dict[int, str] = dict.fromkeys(range(4), "")
    told: dict[int, bytes] = dict.fromkeys(range(4), b"")
    for choice in streamed(lead, FORCED):
        content = choice["delta"].get("content") or ""
        assert "\ufffd" not in content
        texts[choice["index"]] += content
        for one in (choice["logprobs"] or NO_LOGPROBS)["content"]:
            told[choice["index"]] += bytes(one["bytes"])
    assert texts == dict.fromkeys(range(4), TEXT)
    assert told == dict.fromkeys(range(4), TEXT.encode())
    whole = post(lead, FORCED).json()["choices"]
    assert [choice["message"]["content"] for choice in whole] == [TEXT] * 4


@pytest.mark.parametrize("mark", "\u0085\u2028\u2029")
def test_event_is_always_one_line(lead: Lead, mark: str):
    """huggingface_hub 2.4.0 reads lines with httpx, which ends them at these characters, too."""
    body = {**FORCED, "grammar": f'root ::= "one{mark}line"', "n": 1, "stream": True}
    *events, done, end = post(lead, body).content.decode().split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    assert [event.splitlines() for event in events] == [[event] for event in events]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    texts = [choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]]
    assert "".join(texts) == f"one{mark}line"


@pytest.mark.parametrize("stop", ["😀", "語 😀 é", "\u200d", "!"])
def test_split_stop_string_is_cut(lead: Lead, stop: str):
    expected = TEXT[: TEXT.index(stop)]
    body = {**FORCED, "stop": ["never", stop]}
    assert text_of(post(lead, body)) == expected
    first = [one["delta"].get("content") or "" for one in streamed(lead, body) if one["index"] == 0]
    assert "".join(first) == expected


def test_streamed_choices_equal_whole_reply(lead: Lead):
    body = {**BODY, "max_tokens": 30, "temperature": 1, "seed": 9, "n": 4}
    texts = [""] * 4
    for choice in streamed(lead, body):
        texts[choice["index"]] += choice["delta"].get("content") or ""
    assert texts == [choice["message"]["content"] for choice in post(lead, body).json()["choices"]]
    assert len(set(texts)) == 4
