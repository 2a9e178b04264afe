"""Several replies to one request: interleaved, counted once, ended together."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from server.api.stages.submit import seed_of_choice
from server.engine.events import Committed, DrafterCount, Failed, Finished, Started, Stats
from server.errors import BackendError, BusyError
from server.sampling.logprobs import TokenLogprobs
from tests.contract.contract import validate
from tests.fake_backend import Spacing
from tests.server.api.scripted import Call, Script, Scripts, services

STARTED = Started(5, 2)
HELLO = [{"role": "user", "content": "hi"}]


def step(text: str, logprob: float | None = None) -> Committed:
    tokens = tuple(text.encode())
    logprobs = () if logprob is None else tuple(TokenLogprobs(token, logprob) for token in tokens)
    return Committed(tokens, (None,) * len(tokens), logprobs=logprobs)


def done(n: int, *, cached: int = 2, ms: float = 10.0, drafts: tuple[int, ...] = ()) -> Finished:
    n_accepted = sum(i * steps for i, steps in enumerate(drafts))
    count = {"d": DrafterCount(n_accepted + 1, n_accepted)} if drafts else {}
    stats = Stats(5, cached, n, n, 3.0, ms, n_accepted, n_accepted, count, drafts)
    return Finished("stop", replace(stats, undrafted_ms=2 * ms))


def call(*scripts: Script, refusal: Exception | None = None, **body: Any) -> Call:
    return Call(
        services(Scripts(*scripts, refusal=refusal)), body={"messages": HELLO, "n": len(scripts), **body}
    )


async def answer(*scripts: Script, **body: Any) -> Call:
    one = call(*scripts, **body)
    await asyncio.wait_for(one.run(), 10)
    return one


def texts_of(events: list[Any], n: int) -> list[str]:
    texts = [""] * n
    for choice in (choice for event in events for choice in event["choices"]):
        texts[choice["index"]] += choice["delta"].get("content") or ""
    return texts


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"messages": HELLO}, "so"),
        ({"messages": [*HELLO, {"role": "assistant", "content": ""}]}, "so"),
        ({"messages": [*HELLO, {"role": "assistant", "content": "I think"}]}, " so"),
        ({"prompt": "I think"}, " so"),
    ],
)
async def test_first_token_loses_tokenizer_space(fields: dict[str, Any], text: str):
    path = "/v1/completions" if "prompt" in fields else "/v1/chat/completions"
    state = services(Scripts(Script(STARTED, step(" so"), done(3))), vocabulary=Spacing())
    one = Call(state, path, fields)
    await asyncio.wait_for(one.run(), 10)
    [choice] = one.json["choices"]
    assert (choice["message"]["content"] if "message" in choice else choice["text"]) == text


async def test_usage_counts_the_prompt_once():
    first = Script(STARTED, step("abc"), done(3, cached=0, ms=20.0, drafts=(1, 0, 2)))
    second = Script(STARTED, step("de"), done(2, cached=4, ms=40.0, drafts=(0, 1)))
    body = (await answer(first, second)).json
    validate("ChatCompletion", body)
    assert [choice["message"]["content"] for choice in body["choices"]] == ["abc", "de"]
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    usage, timings = body["usage"], body["timings"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (5, 5, 10)
    assert usage["prompt_tokens_details"]["cached_tokens"] == timings["cache_n"] == 0
    assert (timings["predicted_n"], timings["predicted_ms"]) == (5, 40.0)
    assert timings["predicted_per_second"] == pytest.approx(3 / 0.040)
    assert "undrafted_per_second" not in timings  # nobody guessed


async def test_histograms_and_drafters_add_up():
    def drafted(*accepted: int) -> list[Committed]:
        return [Committed((97,) * (n + 1), ("d",) * n + (None,), n_drafted=4) for n in accepted]

    scripts = [
        Script(STARTED, *drafted(0, 2, 2), done(7, drafts=(1, 0, 2))),
        Script(STARTED, *drafted(1), done(2, drafts=(0, 1))),
    ]
    body = (await answer(*scripts)).json
    assert body["timings"]["undrafted_per_second"] == pytest.approx((9 - 2) / 0.020)
    metrics = body["metrics"]["speculative_decoding"]
    assert metrics["acceptance_histogram"] == [1, 1, 2]
    assert (metrics["num_drafts"], metrics["num_accepted_draft_tokens"]) == (4, 5)
    assert metrics["mean_acceptance_length"] == 2.25
    assert metrics["drafters"]["d"]["num_accepted_draft_tokens"] == 5


async def test_choices_stream_and_end_separately():
    scripts = [Script(STARTED), Script(), Script()]
    one = call(*scripts, stream=True, stream_options={"include_usage": True}, stop="##")
    running = asyncio.ensure_future(one.run())
    await one.until_sent(b'"index":2')  # the roles
    scripts[0].tell(step("a0"))
    await one.until_sent(b'"a0"')
    scripts[2].tell(STARTED)
    scripts[2].tell(step("c0##"))
    await one.until_sent(b'"c0"')
    assert scripts[2].cancels == [4]
    await one.until_sent(b'"finish_reason":"stop"')
    scripts[0].tell(step("a1"))
    await one.until_sent(b'"a1"')
    scripts[1].tell(STARTED)
    scripts[1].tell(step("b0"))
    scripts[1].tell(done(2))
    scripts[0].tell(done(4))
    await asyncio.wait_for(running, 10)
    *chunks, usage, end = one.events
    assert end == "[DONE]"
    for chunk in [*chunks, usage]:
        validate("ChatCompletionChunk", chunk)
    assert texts_of(list(chunks), 3) == ["a0a1", "b0", "c0"]
    roles = [chunk["choices"][0]["index"] for chunk in chunks if "role" in chunk["choices"][0]["delta"]]
    assert roles == [0, 1, 2]
    finishes = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert finishes.count("stop") == 3
    assert not any("timings" in chunk for chunk in chunks)
    assert usage["usage"]["completion_tokens"] == usage["timings"]["predicted_n"] == 4 + 2 + 4


async def test_first_choice_keeps_request_seed():
    scripts = [Script(STARTED, step("a"), done(1)) for _ in range(3)]
    await answer(*scripts, seed=7)
    requests = [script.requests[0] for script in scripts]
    seeds = [request.sampling.seed for request in requests]
    assert seeds == [seed_of_choice(7, choice) for choice in range(3)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 3
    assert all(0 <= seed < 1 << 64 for seed in seeds)
    assert len({request.sampling.reseeded(0) for request in requests}) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_client_cancels_all_choices(stream: bool):
    scripts = [Script(STARTED, step("ab")), Script()]
    one = call(*scripts, stream=stream)
    running = asyncio.ensure_future(one.run())
    if stream:
        await one.until_sent(b'"ab"')
    else:
        while not scripts[1].requests:
            await asyncio.sleep(0)
    one.gone.set()
    await asyncio.wait_for(running, 10)
    assert all(script.cancels for script in scripts)


@pytest.mark.parametrize("stream", [False, True])
async def test_full_queue_refuses_all_choices(stream: bool):
    first = Script()
    one = await answer(first, n=2, stream=stream, refusal=BusyError("busy"))
    assert one.status == 429
    assert first.cancels


@pytest.mark.parametrize("stream", [False, True])
async def test_failing_choice_ends_all(stream: bool):
    scripts = [
        Script(STARTED, step("ab")),
        Script(STARTED, step("cd"), Failed(BackendError("the model failed"))),
    ]
    one = await answer(*scripts, stream=stream)
    error = one.events[-1] if stream else one.json
    validate("Error", error)
    assert one.status == (200 if stream else 500)
    if stream:
        assert texts_of(list(one.events[:-1]), 2)[1] == "cd"
    assert scripts[0].cancels


async def test_best_have_largest_mean_logprob():
    scripts = [
        Script(STARTED, step("long", -0.5), done(4)),
        Script(STARTED, step("b", -0.25), done(1)),
        Script(STARTED, step("c", -3.0), done(1)),
        Script(STARTED, step("last", -0.125), step("d", -0.125), done(5)),
    ]
    body = (await answer(*scripts, n=2, best_of=4)).json
    validate("ChatCompletion", body)
    assert [(c["index"], c["message"]["content"]) for c in body["choices"]] == [(0, "lastd"), (1, "b")]
    assert body["usage"]["completion_tokens"] == 4 + 1 + 1 + 5
    assert all(choice["logprobs"] is None for choice in body["choices"])


def stopped(text: str, *logprobs: float) -> Committed:
    """Return a step of one-character tokens with these logprobs."""
    tokens = tuple(text.encode())
    told = tuple(TokenLogprobs(token, logprob) for token, logprob in zip(tokens, logprobs, strict=True))
    return Committed(tokens, (None,) * len(tokens), logprobs=told)


@pytest.mark.parametrize(
    ("second", "best"),
    [
        (stopped("y##", -1.0, -1.0, -1.0), "x"),  # among equals the first
        (stopped("y##", -0.9, -0.9, -0.9), "y"),
        (stopped("y##", -0.5, -1.0, -2.0), "x"),  # the stop string counts
        (stopped("y##z", -0.9, -0.9, -0.9, -50.0), "y"),  # what follows it does not
    ],
    ids=str,
)
async def test_judged_up_to_its_end(second: Committed, best: str):
    scripts = [Script(STARTED, step("x", -1.0), done(1)), Script(STARTED, second)]
    body = (await answer(*scripts, n=1, best_of=2, stop="##")).json
    assert [choice["message"]["content"] for choice in body["choices"]] == [best]
