"""Logprobs, token ids and running timings beside the text: the same whole and streamed, however it is cut."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.events import Committed, Finished, Started, Stats
from server.sampling.logprobs import TokenLogprobs
from tests.contract.contract import validate
from tests.fake_backend import IM_END, IM_START
from tests.server.api.scripted import Call, Script, services

STATS = Stats(5, 2, 6, 2, 30.0, 50.0)
STARTED = Started(5, 2)


def told(position: int, token: int) -> TokenLogprobs:
    """Return logprobs that differ at each position, so that a shift shows."""
    return TokenLogprobs(token, -0.5 * position, ((token, -0.5 * position), (IM_END, -9.0)))


def steps(tokens: Sequence[int], cuts: Sequence[int]) -> list[Committed]:
    """Return the tokens in steps that end at the cuts; all but a step's last are accepted drafts."""
    ends = sorted({cut for cut in cuts if 0 < cut < len(tokens)} | {len(tokens)})
    events: list[Committed] = []
    for begin, end in zip([0, *ends], ends, strict=False):
        n = end - begin
        logprobs = tuple(told(i, tokens[i]) for i in range(begin, end))
        events.append(Committed(tuple(tokens[begin:end]), ("d",) * (n - 1) + (None,), n - 1, (), logprobs))
    return events


async def answer(events: Sequence[Committed], **body: Any) -> Call:
    script = Script(STARTED, *events, Finished("stop", STATS))
    body = {"messages": [{"role": "user", "content": "hi"}], **body}
    one = Call(services(script), body=body)
    await asyncio.wait_for(one.run(), 10)
    return one


def gathered(call: Call) -> tuple[str, list[Any], list[int]]:
    """Return text, logprobs and token ids of a stream, each chunk checked."""
    text, logprobs, tokens = "", list[Any](), list[int]()
    for chunk in call.events[:-1]:
        validate("ChatCompletionChunk", chunk)
        choice = chunk["choices"][0]
        text += choice["delta"].get("content") or ""
        logprobs += (choice["logprobs"] or {"content": []})["content"]
        tokens += choice.get("tokens", [])
        said = b"".join(bytes(one["bytes"] or ()) for one in logprobs)
        assert said.startswith(text.encode()) or text.endswith("\ufffd"), "a text before its tokens"
    return text, logprobs, tokens


async def test_openais_shape():
    one = await answer(steps(b"ab", ()), logprobs=True, top_logprobs=2)
    validate("ChatCompletion", one.json)
    assert one.json["choices"][0]["logprobs"] == {
        "content": [
            {
                "id": 97,
                "token": "a",
                "logprob": 0.0,
                "bytes": [97],
                "top_logprobs": [
                    {"id": 97, "token": "a", "logprob": 0.0, "bytes": [97]},
                    {"id": IM_END, "token": "<|im_end|>", "logprob": -9.0, "bytes": None},
                ],
            },
            {
                "id": 98,
                "token": "b",
                "logprob": -0.5,
                "bytes": [98],
                "top_logprobs": [
                    {"id": 98, "token": "b", "logprob": -0.5, "bytes": [98]},
                    {"id": IM_END, "token": "<|im_end|>", "logprob": -9.0, "bytes": None},
                ],
            },
        ],
        "refusal": None,
    }


@pytest.mark.parametrize(
    ("tokens", "stop", "n_told"),
    [
        (b"abcd", "@@", 4),
        ([*b"ab", IM_END], "@@", 2),
        (b"ab##cd", "##", 2),
        (b"##cd", "##", 0),
        (b"ab#", "##", 3),
        ("aé".encode(), "##", 3),
        ("é##".encode(), "##", 2),
        ("é##".encode()[1:], "##", 1),
        ([97, 0xC3], "##", 2),
        ([97, IM_START, 98], "##", 3),
        ([97, IM_START], "##", 2),
        ([35, IM_START, 35], "##", 0),
    ],
    ids=str,
)
@pytest.mark.parametrize("width", [1, 2, 9])
async def test_tokens_are_those_of_the_text(tokens: Sequence[int], stop: str, n_told: int, width: int):
    events = steps(tokens, range(0, len(tokens), width))
    options = {"logprobs": True, "return_tokens": True, "stop": stop}
    whole = (await answer(events, **options)).json["choices"][0]
    assert [entry["logprob"] for entry in whole["logprobs"]["content"]] == [-0.5 * i for i in range(n_told)]
    assert whole["tokens"] == list(tokens[:n_told])
    text, logprobs, ids = gathered(await answer(events, **options, stream=True))
    assert (text, logprobs, ids) == (
        whole["message"]["content"],
        whole["logprobs"]["content"],
        whole["tokens"],
    )


@given(
    st.lists(st.sampled_from([*b"ab#", 0xC3, 0xA9, 0xF0, 0x9F, IM_START]), min_size=1, max_size=16),
    st.lists(st.integers(0, 16), max_size=6),
    st.sampled_from(["##", "a#", "é", "nothing"]),
)
def test_streams_and_whole_replies_agree(tokens: list[int], cuts: list[int], stop: str):
    options = {"logprobs": True, "return_tokens": True, "stop": stop}
    whole = asyncio.run(answer(steps(tokens, ()), **options)).json["choices"][0]
    streamed = asyncio.run(answer(steps(tokens, cuts), **options, stream=True))
    text, ids = "", list[int]()
    for chunk in streamed.events[:-1]:
        text += chunk["choices"][0]["delta"].get("content") or ""
        ids += chunk["choices"][0].get("tokens", [])
    assert text == whole["message"]["content"]
    assert ids == whole["tokens"] == tokens[: len(ids)]
    assert [entry["logprob"] for entry in whole["logprobs"]["content"]] == [-0.5 * i for i in range(len(ids))]


async def test_held_text_holds_its_tokens():
    script = Script(STARTED)
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "logprobs": True, "stop": "##"}
    one = Call(services(script), body=body)
    running = asyncio.ensure_future(one.run())
    first, second, third = steps([*b"a#b", 0xC3, 0xA9], [2, 4])
    script.tell(first)
    await one.until_sent(b'"content":"a"')
    assert b'"token":"#"' not in one.content
    script.tell(second)
    await one.until_sent(b'"content":"#b"')
    assert b'"bytes":[195' not in one.content
    script.tell(third)
    await one.until_sent('"content":"é"'.encode())
    assert b'"bytes":[195' in one.content
    script.tell(Finished("stop", STATS))
    await asyncio.wait_for(running, 10)


async def test_logprobs_only_when_requested():
    one = await answer(steps(b"ab", ()), logprobs=False, n_probs=0)
    choice = one.json["choices"][0]
    assert choice["logprobs"] is None
    assert "tokens" not in choice


async def test_timings_run_along_when_asked_for():
    script = Script(replace(STARTED, at=10.0))
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "timings_per_token": True}
    one = Call(services(script), body=body)
    running = asyncio.ensure_future(one.run())
    for i, text in enumerate(("ab", "cd")):
        script.tell(replace(steps(text.encode(), ())[0], at=10.5 + i))
        await one.until_sent(f'"{text}"'.encode())
        timings = one.events[i + 1]["timings"]
        assert (timings["cache_n"], timings["prompt_n"]) == (2, 3)
        assert (timings["predicted_n"], timings["draft_n"], timings["draft_n_accepted"]) == (
            2 * i + 2,
            i + 1,
            i + 1,
        )
        assert timings["prompt_ms"] == 500.0, "by the engine's clock: events may come together"
        assert timings["predicted_ms"] == 1000.0 * i
    script.tell(Finished("stop", STATS))
    await asyncio.wait_for(running, 10)
    for chunk in one.events[:-1]:
        validate("ChatCompletionChunk", chunk)
    assert one.events[-2]["timings"]["predicted_ms"] == 50.0
