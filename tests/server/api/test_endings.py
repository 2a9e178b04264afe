"""How a reply may end, at chosen moments: failures, stop strings in a run, shutdown, clients that go away."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from sse_starlette.sse import AppStatus

from server.api import delivery
from server.api.services import DrafterHealth, Health
from server.engine.events import Committed, DrafterCount, Failed, Finished, Started, Stats
from server.engine.request import GenerationRequest
from server.errors import BackendError, BusyError
from tests.contract.contract import validate
from tests.fake_backend import FakeVocabulary
from tests.server.api.scripted import Call, Script, services

STARTED = Started(5, 2)
STATS = Stats(5, 2, 6, 2, 30.0, 50.0, 4, 3, {"d": DrafterCount(4, 3)}, (0, 0, 0, 1))
HELLO = [{"role": "user", "content": "hi"}]


def step(text: str, n_accepted: int = 0, n_drafted: int = 0) -> Committed:
    tokens = tuple(text.encode())
    sources = ("d",) * n_accepted + (None,) * (len(tokens) - n_accepted)
    return Committed(tokens, sources, n_drafted)


def call(script: Script, **body: Any) -> Call:
    return Call(services(script), body={"messages": HELLO, **body})


async def answer(script: Script, **body: Any) -> Call:
    one = call(script, **body)
    await asyncio.wait_for(one.run(), 10)
    return one


def text_of(events: list[Any]) -> str:
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


async def test_counts_are_the_engines():
    script = Script(STARTED, step("ab"), step("cdef", 3, 4), Finished("length", STATS))
    body = (await answer(script)).json
    validate("ChatCompletion", body)
    assert body["choices"][0]["message"]["content"] == "abcdef"
    assert body["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 6,
        "total_tokens": 11,
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "accepted_prediction_tokens": 3,
            "rejected_prediction_tokens": 1,
        },
    }
    assert body["timings"] == {
        "cache_n": 2,
        "prompt_n": 3,
        "prompt_ms": 30.0,
        "prompt_per_token_ms": 10.0,
        "prompt_per_second": 100.0,
        "predicted_n": 6,
        "predicted_ms": 50.0,
        "predicted_per_token_ms": 10.0,
        "predicted_per_second": 100.0,
        "draft_n": 4,
        "draft_n_accepted": 3,
    }
    counts = {"num_draft_tokens": 4, "num_accepted_draft_tokens": 3, "draft_acceptance_rate": 0.75}
    assert body["metrics"] == {
        "speculative_decoding": {
            "num_drafts": 1,
            **counts,
            "mean_acceptance_length": 4.0,
            "acceptance_histogram": [0, 0, 0, 1],
            "drafters": {"d": counts},
        },
        "truncated": False,
    }


@pytest.mark.parametrize("stream", [False, True])
async def test_stop_string_cuts_accepted_run(stream: bool):
    script = Script(STARTED, step("a"), step("bc##de", 6, 7), step("never seen", 0, 9))
    one = await answer(script, stop="##", stream=stream, stream_options={"include_usage": True})
    assert script.cancels[0] == 5
    if stream:
        *chunks, last, done = one.events
        assert done == "[DONE]"
        for chunk in [*chunks, last]:
            validate("ChatCompletionChunk", chunk)
        assert text_of(chunks) == "abc"
        reason, usage, timings = (
            chunks[-1]["choices"][0]["finish_reason"],
            last["usage"],
            last["timings"],
        )
    else:
        validate("ChatCompletion", one.json)
        assert one.json["choices"][0]["message"]["content"] == "abc"
        reason, usage, timings = (
            one.json["choices"][0]["finish_reason"],
            one.json["usage"],
            one.json["timings"],
        )
    assert reason == "stop"
    assert usage["completion_tokens"] == timings["predicted_n"] == 5
    assert (timings["draft_n"], timings["draft_n_accepted"]) == (7, 4)
    assert usage["completion_tokens_details"]["rejected_prediction_tokens"] == 3


async def test_gathered_text_is_one_chunk():
    script = Script(STARTED, step("abc", 2, 2), Committed((0xC3,), (None,)), Committed((0xA9,), (None,)))
    script.tell(Finished("stop", STATS))
    events = list((await answer(script, stream=True)).events)
    contents = [event["choices"][0]["delta"].get("content") for event in events[1:-2]]
    assert contents == ["abcé"]


@pytest.mark.parametrize("stream", [False, True])
async def test_early_failure_has_a_status(stream: bool):
    one = await answer(Script(Failed(BackendError("the model failed"))), stream=stream)
    assert one.status == 500
    validate("Error", one.json)
    assert one.json["error"]["message"] == "the model failed"


async def test_late_failure_is_last_event():
    script = Script(STARTED, step("ab"), Failed(BackendError("the model failed")))
    one = await answer(script, stream=True)
    *chunks, last = one.events
    assert one.status == 200
    assert text_of(chunks) == "ab"
    validate("Error", last)
    assert (await answer(Script(STARTED, step("ab"), Failed(BackendError("x"))))).status == 500


async def test_late_defect_hides_details(caplog: pytest.LogCaptureFixture):
    class Broken(FakeVocabulary):
        def piece(self, token: int, *, special: bool = False) -> bytes:
            if special or token != ord("~"):
                return super().piece(token, special=True)
            raise RuntimeError("a secret")

    for stream in (True, False):
        script = Script(STARTED, step("~"))
        one = Call(services(script, vocabulary=Broken()), body={"messages": HELLO, "stream": stream})
        with caplog.at_level(logging.ERROR):
            await one.run()
        error = one.events[-1] if stream else one.json
        validate("Error", error)
        assert one.status == (200 if stream else 500)
        assert b"secret" not in one.content
        assert "a secret" in caplog.text
        assert script.cancels


async def test_defect_has_usual_headers(caplog: pytest.LogCaptureFixture):
    one = Call(
        services(Script(refusal=RuntimeError("a bug"))),
        body={"messages": HELLO},
        headers={"Origin": "http://elsewhere", "X-Request-Id": "mine"},
    )
    await one.run()
    assert one.status == 500
    validate("Error", one.json)
    assert one.header["x-request-id"] == "mine"
    assert one.header["openai-processing-ms"].isdigit()
    assert one.header["access-control-allow-origin"] == "http://elsewhere"
    assert "a bug" in caplog.text


@pytest.mark.parametrize("stream", [False, True])
async def test_cut_reply_is_not_whole(stream: bool):
    cut = Finished("cancelled", STATS)
    queued = await answer(Script(cut), stream=stream)
    assert queued.status == 503
    assert queued.header["retry-after"] == "1"
    running = await answer(Script(STARTED, step("ab"), cut), stream=stream)
    error = running.events[-1] if stream else running.json
    validate("Error", error)
    assert running.status == (200 if stream else 503)


@pytest.mark.parametrize(("draining", "status"), [(False, 429), (True, 503)])
async def test_refused_admission_says_retry_after(draining: bool, status: int):
    one = await answer(Script(refusal=BusyError("busy", draining=draining)), stream=True)
    assert one.status == status
    assert one.header["retry-after"] == "1"
    validate("Error", one.json)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "events", [(), (STARTED,), (STARTED, step("ab"))], ids=["queued", "prefill", "decode"]
)
async def test_a_client_that_goes_away_cancels(events: tuple[Any, ...], stream: bool):
    script = Script(*events)
    one = call(script, stream=stream)
    running = asyncio.ensure_future(one.run())
    if stream and len(events) == 2:
        await one.until_sent(b'"ab"')
    else:
        while not script.requests:
            await asyncio.sleep(0)
    one.gone.set()
    await asyncio.wait_for(running, 10)
    assert script.cancels
    assert b"[DONE]" not in one.content


@pytest.mark.parametrize("stream", [False, True])
async def test_early_leave_cancels_the_request(stream: bool):
    """The client closes as the request is submitted; the first event comes at the same moment."""

    class Closing(Script):
        def submit(self, request: GenerationRequest) -> Script:
            one.gone.set()
            return super().submit(request)

    script = Closing(STARTED)
    one = call(script, stream=stream)
    await asyncio.wait_for(one.run(), 10)
    assert script.cancels


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/rpc"])
async def test_leaving_while_sending_is_no_defect(path: str, caplog: pytest.LogCaptureFixture):
    one = Call(services(Script()), path, arriving=[b'{"messages": ', None])
    await asyncio.wait_for(one.run(), 10)
    assert one.status == 499
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("stream", [False, True])
async def test_gone_client_submits_nothing(stream: bool):
    script = Script(STARTED)
    one = call(script, stream=stream)
    one.gone.set()
    await asyncio.wait_for(one.run(), 10)
    assert (one.status, script.requests) == (499, [])


async def test_running_stream_outlives_stop_request(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(AppStatus, "should_exit", True)  # what SIGTERM sets
    script = Script(STARTED, step("ab"))
    one = call(script, stream=True)
    running = asyncio.ensure_future(one.run())
    await one.until_sent(b'"ab"')
    script.tell(step("c"))
    await one.until_sent(b'"c"')
    script.tell(Finished("stop", STATS))
    await asyncio.wait_for(running, 10)
    assert one.events[-1] == "[DONE]"


async def test_a_silent_stream_is_kept_alive(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(delivery, "KEEP_ALIVE_S", 0.001)
    script = Script(STARTED, step("ab"))
    one = call(script, stream=True)
    running = asyncio.ensure_future(one.run())
    await one.until_sent(b'"ab"')
    await one.until_sent(b": ping")
    script.tell(step("c"))
    script.tell(Finished("stop", STATS))
    await asyncio.wait_for(running, 10)
    told = [event for event in one.content.split(b"\n\n") if not event.startswith(b": ping")]
    assert all(event.startswith(b"data: ") for event in told[:-1])
    assert told[-2:] == [b"data: [DONE]", b""]


async def test_a_request_cancelled_by_its_server_cancels():
    script = Script(STARTED, step("ab"))
    one = call(script, stream=True)
    running = asyncio.ensure_future(one.run())
    await one.until_sent(b'"ab"')
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert script.cancels


@pytest.mark.parametrize("stream", [False, True])
async def test_request_cancelled_before_its_answer_is_503(stream: bool):
    """As uvicorn cancels what runs when its time to shut down is over."""
    script = Script()
    one = call(script, stream=stream)
    running = asyncio.ensure_future(one.run())
    while not script.requests:
        await asyncio.sleep(0)
    running.cancel()
    await running
    assert (one.status, one.header["retry-after"]) == (503, "1")
    validate("Error", one.json)
    assert "shutting down" in one.json["error"]["message"]
    assert script.cancels


@pytest.mark.parametrize(
    ("given", "expected"), [(None, None), (True, None), (False, 0), ({"n_max": 3}, 3), ({}, None)]
)
async def test_speculation_and_sampling_reach_the_engine(given: Any, expected: int | None):
    script = Script(STARTED, Finished("stop", STATS))
    sampling = {"temperature": 0, "top_k": -1, "top_p": 0.5, "min_p": 0.1, "seed": -3, "max_tokens": 9}
    await answer(script, speculative=given, **sampling)
    (request,) = script.requests
    params = request.sampling
    assert request.speculation.n_max == expected
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.0, 0, 0.5, 0.1)
    assert params.seed == 2**64 - 3
    assert request.max_tokens == 9
    assert request.stop_tokens == FakeVocabulary.eog


async def test_bos_is_put_first_once():
    class WithBos(FakeVocabulary):
        bos = 256  # which is how every ChatML prompt begins
        add_bos = True

    class WithOtherBos(FakeVocabulary):
        bos = 258
        add_bos = True

    for vocabulary, head in ((WithBos(), [256, ord("u")]), (WithOtherBos(), [258, 256])):
        script = Script(STARTED, Finished("stop", STATS))
        await Call(services(script, vocabulary=vocabulary), body={"messages": HELLO}).run()
        assert list(script.requests[0].prompt[:2]) == head


@pytest.mark.parametrize(("state", "status"), [("ok", 200), ("loading", 503), ("stuck", 503)])
async def test_health(state: Any, status: int):
    drafters = (DrafterHealth("d", "m", "refused", "vocabulary sizes differ", {"stale": 2}),)
    one = Call(services(Script(), health=Health(state, 4, 1, 2, 12.34, drafters)), "/health", method="GET")
    await one.run()
    assert one.status == status
    validate("Health", one.json)
    assert one.json["status"] == state
    assert one.json["drafters"][0]["reason"] == "vocabulary sizes differ"
    assert one.json["drafters"][0]["rests"] is None
