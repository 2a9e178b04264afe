"""What the measuring client makes of a stream, whole or broken."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks.client import ReplyError, ask, parse
from benchmarks.processes import free_port
from benchmarks.prompts import PYTHON, Prompt, load


def stream(*chunks: dict[str, Any], done: bool = True) -> list[tuple[float, bytes]]:
    """Return one line each tenth of a second, from 10.1 on."""
    lines = [f"data: {json.dumps(chunk)}\n".encode() for chunk in chunks]
    lines += [b"data: [DONE]\n"] if done else []
    return [(10.1 + i / 10, line) for i, line in enumerate(lines)]


def delta(content: str) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": content}, "finish_reason": None}]}


FINISH: dict[str, Any] = {"choices": [{"delta": {}, "finish_reason": "stop"}]}


LAST: dict[str, Any] = {
    "choices": [],
    "usage": {"completion_tokens": 5},
    "timings": {"predicted_n": 5, "predicted_ms": 320, "draft_n": 8, "draft_n_accepted": 3},
}


def test_rates_of_both_clocks():
    role = {"choices": [{"delta": {"role": "assistant"}}]}
    reply = parse(stream(role, delta("a"), delta("b"), delta("c d"), FINISH, LAST), asked=10.0)
    assert reply.text == "abc d"
    assert reply.first_ms == pytest.approx(200)
    assert reply.client_rate == pytest.approx(4 / 0.3)  # four tokens after the first, from 10.2 to 10.5
    assert (reply.server_rate, reply.n_drafted, reply.n_accepted) == (12.5, 8, 3)


def test_timings_in_last_chunk():
    timings = {"predicted_n": 4, "predicted_ms": 1000}
    usage: dict[str, Any] = {"choices": [], "usage": {"completion_tokens": 4}}
    reply = parse(stream(delta("a"), {**FINISH, "timings": timings}, usage), asked=10.0)
    assert reply.server_rate == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("usage", "timings", "expected"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 4}}, {}, 4),
        ({"prompt_tokens_details": {"cached_tokens": 0}}, {"cache_n": 5}, 0),
        ({}, {"cache_n": 5}, 5),
        ({"prompt_tokens_details": None}, {}, 0),
    ],
)
def test_cached_tokens_by_usage_else_by_timings(
    usage: dict[str, Any], timings: dict[str, Any], expected: int
):
    last = {"usage": {"completion_tokens": 1, "prompt_tokens": 9, **usage}, "timings": timings}
    reply = parse(stream(delta("a"), FINISH, last), asked=10.0)
    assert (reply.n_prompt, reply.n_cached) == (9, expected)


def test_one_token_has_no_rate():
    timings = {"predicted_n": 1, "predicted_ms": 0.0}
    last: dict[str, Any] = {"choices": [], "usage": {"completion_tokens": 1}, "timings": timings}
    reply = parse(stream(delta("a"), FINISH, last), asked=10.0)
    assert (reply.server_rate, reply.client_rate) == (None, None)


def test_an_empty_reply_is_a_reply():
    last: dict[str, Any] = {"choices": [], "usage": {"completion_tokens": 1}}
    reply = parse(stream(FINISH, last), asked=10.0)
    assert (reply.text, reply.client_rate) == ("", None)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (stream(delta("a"), FINISH, LAST, done=False), "cut short"),
        (stream(delta("a"), FINISH), "cut short"),
        (stream(delta("a"), LAST), "cut short"),
        (stream(delta("a"), {"error": {"message": "boom"}}), "boom"),
    ],
    ids=["without its end", "without usage", "without a reason", "with an error"],
)
def test_a_broken_stream_is_an_error(lines: list[tuple[float, bytes]], reason: str):
    with pytest.raises(ReplyError, match=reason):
        parse(lines, asked=10.0)


def test_absent_server_is_an_error():
    with pytest.raises(ReplyError, match="does not answer"):
        ask(free_port(), Prompt("p", []), 1)


def kinds(prompts: Sequence[Prompt]) -> Counter[str]:
    return Counter(prompt.kind for prompt in prompts)


def test_sixty_general_prompts_of_eight_kinds():
    everything = load()
    assert len({prompt.id for prompt in everything}) == 60
    assert kinds(everything) == {
        "fact": 8, "code": 8, "writing": 8, "maths": 8, "chat": 8, "extract": 8, "document": 4, "turns": 8
    }  # fmt: skip
    assert all(len(prompt.messages) >= 3 for prompt in everything if prompt.kind == "turns")


def test_document_prompts_hold_the_text():
    for prompt in (prompt for prompt in load() if prompt.kind == "document"):
        content = prompt.messages[0]["content"]
        assert "{document}" not in content
        assert 2000 < len(content.split()) < 2500


def test_prompts_spread_over_kinds():
    everything = load(subject=PYTHON)
    assert len(everything) == 52
    assert len(kinds(load(14, PYTHON))) == 7
    assert len(kinds(load(15))) == 8
    assert load(5) == load(5)
    assert len({prompt.id for prompt in load(51, PYTHON)}) == 51
    assert load(1000, PYTHON) == everything
