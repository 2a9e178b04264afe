"""When the tokens of a stream are told: evenly, never later than plain steps, all at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.api import choices
from server.api.pacing import FRAME_S, HELD, Pace, UnsentPieces
from server.engine.events import Committed, Finished, Started, Stats
from server.sampling.logprobs import TokenLogprobs
from server.text.message import Content, Piece
from tests.paced import Stream
from tests.server.api.scripted import Call, Script, services

PLAIN_S = 0.05
TOLD = [1, 4, 1, 6, 3]  # tokens of each step


def test_undrafted_tokens_are_sent_at_once():
    stream, ends = Stream(), [1.0, 1.05, 1.08, 1.2, 1.21]
    for at in ends:
        stream.step(at, 1, 0.0)
    assert stream.times == ends
    assert stream.pace.next_at is None


def test_short_steps_are_sent_at_once():
    stream = Stream()
    for i in range(5):
        stream.step(1.0 + 0.9 * i * FRAME_S, 4, 0.005)
    assert stream.gaps.count(0.0) == 15


def test_short_gathering_spreads_short_steps():
    stream, step_s, undrafted_s = Stream(Pace(FRAME_S / 4)), FRAME_S / 2, FRAME_S / 3
    for i in range(40):
        stream.step(1.0 + i * step_s, TOLD[i % len(TOLD)], undrafted_s)
    assert sorted(stream.gaps)[-len(stream.gaps) // 20] <= 1.01 * undrafted_s


def test_long_step_is_spread_evenly():
    stream = Stream()
    stream.step(1.0, 1, PLAIN_S)
    stream.step(1.1, 4, PLAIN_S)
    stream.pass_until(9.0)
    assert stream.gaps == pytest.approx([0.1, PLAIN_S, PLAIN_S, PLAIN_S])


def test_spreading_ends_within_two_steps():
    stream = Stream()
    stream.step(1.0, 1, PLAIN_S)
    stream.step(1.2, 40, PLAIN_S)
    stream.pass_until(9.0)
    assert stream.times[-1] <= 1.2 + HELD * 0.2 + FRAME_S
    assert max(stream.gaps[1:]) == pytest.approx(FRAME_S)


def test_stream_flows_over_uneven_steps():
    stream, step_s = Stream(), 2 * PLAIN_S
    for i in range(40):
        stream.step(1.0 + i * step_s, TOLD[i % len(TOLD)], PLAIN_S)
    assert sorted(stream.gaps)[-len(stream.gaps) // 20] <= 1.01 * PLAIN_S


@given(st.lists(st.tuples(st.floats(0.001, 0.5), st.integers(1, 20), st.floats(0.5, 1.0)), min_size=2))
def test_spreading_never_delays_plain_rate(steps: list[tuple[float, int, float]]):
    stream, at, heard = Stream(), 1.0, list[tuple[float, float]]()
    for seconds, n, share in steps:
        at += seconds
        stream.step(at, n, share * seconds)
        heard += [(at, share * seconds)] * n
    stream.pass_until(at + 60.0)
    assert len(stream.times) == len(heard)
    assert stream.times == sorted(stream.times)
    slowest = max(undrafted_s for _, undrafted_s in heard)
    for (before, told), (came, _) in zip(pairwise(stream.times), heard[1:], strict=True):
        assert came - 1e-9 <= told <= max(came, before + max(slowest, FRAME_S)) + 1e-9


def text_of(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, Content))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.floats(0.0, 0.2)), max_size=20))
def test_spreading_keeps_all_in_order(added: list[tuple[bool, int, float]]):
    untold, told, said, now = UnsentPieces(), "", "", 1.0
    untold.pace = Pace()
    for alone, n, seconds in added:
        now += seconds
        texts = [str(len(said) + i) for i in range(n)]
        if untold.spreads(n, now) and not alone:
            ends = [len(said) + sum(map(len, texts[: i + 1])) for i in range(n)]
            read = [(list[Piece]([Content(text)]), end) for text, end in zip(texts, ends, strict=True)]
            untold.spread(len(said), [*read, (list[Piece](), len(said))], 0.01, now)
        else:
            untold.add([Content(text) for text in texts])
        said += "".join(texts)
        pieces, n_parsed = untold.take(len(said), now, ends=False)
        told += text_of(pieces)
        assert n_parsed <= len(said)
        assert told + text_of(untold.pieces) == said
    pieces, n_parsed = untold.take(len(said), now, ends=True)
    assert told + text_of(pieces) == said
    assert n_parsed == len(said)
    assert not untold.pieces


# -- through the app ----------------------------------------


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(choices, "monotonic", clock)
    return clock


def step(text: str, at: float) -> Committed:
    tokens = tuple(text.encode())
    logprobs = tuple(TokenLogprobs(token, -1.0) for token in tokens)
    sources, n_drafted = (*["d"] * (len(tokens) - 1), None), len(tokens) - 1
    return Committed(tokens, sources, n_drafted, (), logprobs, at, undrafted_s=0.25)


STREAMED = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
ENDED = Finished("stop", Stats(5, 0, 7, 2, 1.0, 500.0))


async def hear(
    script: Script, clock: Clock, path: str = "/v1/chat/completions", **more: Any
) -> tuple[Call, asyncio.Task[None]]:
    """Return a stream of which a step of one token and one of six have been heard."""
    call = Call(services(script), path, {**STREAMED, **more})
    running = asyncio.ensure_future(call.run())
    script.tell(Started(5, 0))
    script.tell(step("H", 10.0))
    await call.until_sent(b'"H"')
    clock.now += 0.5
    script.tell(step("ello w", 10.5))
    await call.until_sent(b'"e"')
    return call, running


def told(call: Call) -> Sequence[str]:
    deltas = [choice["delta"] for event in call.events[:-1] for choice in event["choices"]]
    return [text for delta in deltas if (text := delta.get("content"))]


async def test_stream_spreads_a_step(clock: Clock):
    script = Script()
    call, running = await hear(script, clock)
    for n in range(1, 4):
        while len(script.wakes) < n:
            await asyncio.sleep(0)
        assert script.wakes[-1] == pytest.approx(1 / 6, rel=0.01)
        clock.now += script.wakes[-1]
        script.wake()
    await call.until_sent(b'"o"')
    script.tell(ENDED)
    await asyncio.wait_for(running, 10)
    assert told(call)[:6] == ["H", "e", "l", "l", "o", " w"]


@pytest.mark.parametrize(("smooth", "fields"), [(False, {}), (True, {"timings_per_token": True})])
async def test_timings_turn_spreading_off(clock: Clock, smooth: bool, fields: dict[str, Any]):
    script = Script()
    call = Call(replace(services(script), frame_s=FRAME_S if smooth else 0.0), body={**STREAMED, **fields})
    running = asyncio.ensure_future(call.run())
    for event in (Started(5, 0), step("H", 10.0), step("ello w", 10.5)):
        script.tell(event)
    await call.until_sent(b'ello w"')
    script.tell(ENDED)
    await asyncio.wait_for(running, 10)
    assert not script.wakes


async def test_logprobs_come_with_their_tokens(clock: Clock):
    script = Script()
    call, running = await hear(script, clock, logprobs=True)
    script.tell(ENDED)
    await asyncio.wait_for(running, 10)
    for event in call.events[:-1]:
        for choice in event["choices"]:
            content, logprobs = choice["delta"].get("content") or "", choice["logprobs"]
            tokens = [entry["token"] for entry in logprobs["content"]] if logprobs else []
            assert "".join(tokens) == content
    assert "".join(told(call)) == "Hello w"


async def test_native_stream_counts_sent_tokens(clock: Clock):
    script = Script()
    call, running = await hear(script, clock, "/completion", prompt="hi")
    script.tell(ENDED)
    await asyncio.wait_for(running, 10)
    *chunks, last = call.events
    assert [(one["content"], one["tokens_predicted"]) for one in chunks[:2]] == [("H", 1), ("e", 2)]
    assert last["tokens_predicted"] == 7


async def test_stop_string_ends_spread_text(clock: Clock):
    script = Script()
    call, running = await hear(script, clock, stop=["wo"])
    script.tell(step("or", 11.0))
    await asyncio.wait_for(running, 10)
    assert script.cancels[0] == len("Hello wo")
    assert "".join(told(call)) == "Hello "
