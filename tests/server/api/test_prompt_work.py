"""Prompts are rendered and tokenised aside, as many at a time as there is room for, and none for nothing."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from server.api import prompt_work
from server.api.prompt_work import N_THREADS, PromptWork
from server.api.services import ModelCard
from server.api.stages import validate as stage
from server.engine.events import Finished, Started, Stats
from server.errors import BusyError
from server.grammar.compiler import Compiler
from server.text.room import ANY
from server.text.template import ChatTemplate
from tests.contract.contract import validate
from tests.fake_backend import FakeVocabulary
from tests.server.api.scripted import N_CTX, Call, Script, services

WAIT_S = 30


class Gate:
    """Work that runs until the test lets it go."""

    def __init__(self) -> None:
        self.began: list[Any] = []
        self.open = threading.Event()
        self._news = threading.Semaphore(0)

    def __call__(self, what: Any = None) -> Any:
        self.began.append(what)
        self._news.release()
        assert self.open.wait(WAIT_S)
        return what

    async def until_begun(self, n: int) -> None:
        """Wait until n more have begun."""
        for _ in range(n):
            assert await asyncio.to_thread(self._news.acquire, timeout=WAIT_S)


@pytest.fixture
async def gate() -> AsyncIterator[Gate]:
    one = Gate()
    try:
        yield one
    finally:
        one.open.set()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0)


async def test_cancelled_work_never_begins(gate: Gate):
    work = PromptWork()
    running = [asyncio.ensure_future(work.run(gate, i)) for i in range(N_THREADS)]
    await gate.until_begun(N_THREADS)
    left = asyncio.ensure_future(work.run(gate, "left"))
    stayed = asyncio.ensure_future(work.run(gate, "stayed"))
    await until(lambda: work.n_waiting == 2)
    left.cancel()
    await until(lambda: work.n_waiting == 1)
    gate.open.set()
    assert await asyncio.gather(*running, stayed) == [*range(N_THREADS), "stayed"]
    assert "left" not in gate.began


async def test_cancelled_running_work_keeps_place(gate: Gate):
    work = PromptWork()
    running = [asyncio.ensure_future(work.run(gate)) for _ in range(N_THREADS)]
    await gate.until_begun(N_THREADS)
    for one in running:
        one.cancel()
    await asyncio.wait(running)
    next_one = asyncio.ensure_future(work.run(gate, "next"))
    await until(lambda: work.n_waiting == 1)
    gate.open.set()
    assert await next_one == "next"
    await work.close()


async def test_more_than_may_wait_is_refused(gate: Gate):
    work = PromptWork(max_waiting=1)
    running = [asyncio.ensure_future(work.run(gate)) for _ in range(N_THREADS)]
    await gate.until_begun(N_THREADS)
    waiting = asyncio.ensure_future(work.run(gate))
    await until(lambda: work.n_waiting == 1)
    with pytest.raises(BusyError):
        await work.run(gate)
    gate.open.set()
    await asyncio.gather(*running, waiting)


async def test_errors_are_the_callers():
    work = PromptWork()
    for _ in range(2 * N_THREADS):
        with pytest.raises(ZeroDivisionError):
            await work.run(lambda: 1 // 0)


@pytest.mark.parametrize("closed", [True, False])
async def test_threads_live_until_close(closed: bool):
    work = PromptWork()
    threads = {await work.run(threading.current_thread) for _ in range(2 * N_THREADS)}
    assert len(threads) <= N_THREADS
    if closed:
        await work.close()
    del work
    gc.collect()
    for thread in threads:
        await asyncio.to_thread(thread.join, WAIT_S)
        assert not thread.is_alive()


async def test_hanging_work_shows_in_health(gate: Gate, monkeypatch: pytest.MonkeyPatch):
    one = services(Script())
    running = [asyncio.ensure_future(one.prompt_work.run(gate)) for _ in range(N_THREADS + 1)]
    await gate.until_begun(N_THREADS)
    asked = Call(one, "/health", method="GET")
    await asked.run()
    assert (asked.status, asked.json["queued"]) == (200, 1)
    monkeypatch.setattr(prompt_work, "PROMPT_STUCK_S", 0.0)
    monkeypatch.setattr(prompt_work, "PROMPT_CLOSE_S", 0.0)
    asked = Call(one, "/health", method="GET")
    await asked.run()
    assert (asked.status, asked.json["status"]) == (503, "stuck")
    validate("Health", asked.json)
    await one.prompt_work.close()
    gate.open.set()
    await asyncio.gather(*running)


async def test_pictures_may_take_longer(gate: Gate, monkeypatch: pytest.MonkeyPatch):
    work = PromptWork()

    def encoded() -> None:
        work.expect_long()
        gate()

    running = [asyncio.ensure_future(work.run(encoded))]
    await gate.until_begun(1)
    monkeypatch.setattr(prompt_work, "PROMPT_STUCK_S", 0.0)
    assert work.stuck() is None
    running.append(asyncio.ensure_future(work.run(gate)))
    await gate.until_begun(1)
    assert work.stuck()
    gate.open.set()
    await asyncio.gather(*running)
    assert work.stuck() is None
    work.expect_long()  # changes nothing elsewhere than in work
    await work.close()


class Gated(FakeVocabulary):
    """A model whose tokenizer blocks on texts with "slow" in them."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        return super().tokenize(self._gate(text) if "slow" in text else text, special=special)


BODIES: dict[str, Callable[[str], dict[str, Any]]] = {
    "/v1/chat/completions": lambda text: {"messages": [{"role": "user", "content": text}]},
    "/v1/completions": lambda text: {"prompt": text},
    "/v1/responses": lambda text: {"input": text},
    "/v1/precompute": lambda text: {"messages": [{"role": "user", "content": text}]},
    "/tokenize": lambda text: {"content": text},
    "/apply-template": lambda text: {"messages": [{"role": "user", "content": text}]},
    "/rpc": lambda text: {"jsonrpc": "2.0", "id": 1, "method": "tokenize", "params": {"text": text}},
}


@pytest.mark.parametrize("path", [path for path in BODIES if path != "/apply-template"])
async def test_left_prompts_delay_nobody(gate: Gate, path: str):
    script = Script(Started(5, 2), Finished("stop", Stats(5, 2, 0, 0, 1.0, 1.0)))
    one = services(script, vocabulary=Gated(gate))
    calls = [Call(one, path, BODIES[path](f"slow {i}")) for i in range(N_THREADS + 3)]
    running = [asyncio.ensure_future(call.run()) for call in calls]
    await gate.until_begun(N_THREADS)
    await until(lambda: one.prompt_work.n_waiting == 3)
    for call in calls:
        call.gone.set()
    await asyncio.gather(*running)
    assert one.prompt_work.n_waiting == 0
    assert {call.status for call in calls} == {499}
    assert script.requests == []
    gate.open.set()
    quick = Call(one, path, BODIES[path]("quick"))
    await asyncio.wait_for(quick.run(), WAIT_S)
    assert quick.status == 200
    assert len(gate.began) == N_THREADS


async def test_looping_template_is_504():
    loops = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}"
    one = replace(services(Script()), template=ChatTemplate(loops, room=replace(ANY, render_s=0.05)))
    calls = [Call(one, body=BODIES["/v1/chat/completions"]("hi")) for _ in range(2 * N_THREADS)]
    await asyncio.wait_for(asyncio.gather(*(call.run() for call in calls)), WAIT_S)
    for call in calls:
        assert call.status == 504
        validate("Error", call.json)
        assert call.header["x-should-retry"] == "false"


class Unread(FakeVocabulary):
    """A model whose tokenizer fails on more than a letter."""

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        assert len(text) == 1, "tokenised"
        return super().tokenize(text, special=special)


PARAMS = {"/v1/completions": "prompt", "/v1/responses": "input"}
TOO_LONG = "x" * (N_CTX * FakeVocabulary.longest)


@pytest.mark.parametrize("path", [path for path in BODIES if path.startswith("/v1")])
async def test_oversized_text_is_refused_untokenised(path: str):
    call = Call(services(Script(), vocabulary=Unread()), path, BODIES[path](TOO_LONG))
    await asyncio.wait_for(call.run(), WAIT_S)
    assert call.status == 400
    error = call.json["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == PARAMS.get(path, "messages")
    assert "at least 6553" in error["message"]


async def test_pieces_of_a_prompt_count_together():
    half = TOO_LONG[: len(TOO_LONG) // 2]
    for body in ({"prompt": [half, 1, half]}, {"prompt": half, "suffix": half}):
        call = Call(services(Script(), vocabulary=Unread()), "/v1/completions", body)
        await asyncio.wait_for(call.run(), WAIT_S)
        assert call.json["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/responses", "/v1/precompute", "/apply-template"]
)
async def test_too_many_messages_are_refused(path: str):
    messages = [{"role": "user", "content": "hi"}] * 999 + [{"role": "user"}]
    body = {"input": messages[:-1] * 2} if path == "/v1/responses" else {"messages": messages}
    template = ChatTemplate("{{ raise_exception('rendered') }}")
    card = ModelCard("toy", 1, 1000, 1000, "a toy")
    call = Call(replace(services(Script()), template=template, model=card), path, body)
    await asyncio.wait_for(call.run(), WAIT_S)
    assert call.json["error"]["code"] == "context_length_exceeded"
    assert "at least" in call.json["error"]["message"]


async def test_long_prompt_compiles_no_grammar(monkeypatch: pytest.MonkeyPatch):
    def compiled(*_: object) -> None:
        raise AssertionError("compiled")

    monkeypatch.setattr(Compiler, "lark", compiled)
    monkeypatch.setattr(Compiler, "json_schema", compiled)
    one = replace(services(Script()), grammars=Compiler(FakeVocabulary()))
    tool = {"type": "function", "function": {"name": "f"}}
    for more in ({"tools": [tool]}, {"json_schema": {"type": "object"}}):
        call = Call(one, body={**BODIES["/v1/chat/completions"]("x" * N_CTX), **more})
        await asyncio.wait_for(call.run(), WAIT_S)
        assert call.json["error"]["code"] == "context_length_exceeded"


async def test_large_body_is_parsed_aside(
    monkeypatch: pytest.MonkeyPatch,
):
    threads: list[str] = []
    loads = stage.orjson.loads

    def watched(data: bytes) -> Any:
        threads.append(threading.current_thread().name)
        return loads(data)

    monkeypatch.setattr(stage.orjson, "loads", watched)
    for content, expected in (("small", "MainThread"), ("x" * stage.LARGE, "duo-prompt")):
        await Call(services(Script()), "/tokenize", {"content": content}).run()
        assert threads[0] == expected
        threads.clear()
    numbers, objects = [0] * (stage.MAX_MARKS + 2), [{"": ""}] * (stage.MAX_MARKS // 10)
    for path, values in itertools.product(BODIES, (numbers, objects)):
        call = Call(services(Script()), path, {"x": values})
        await call.run()
        assert call.status == 413
        assert "duo-prompt" not in threads


async def test_long_prediction_is_cut_early():
    script = Script(Started(5, 2), Finished("stop", Stats(5, 2, 0, 0, 1.0, 1.0)))
    texts: list[str] = []

    class Watched(FakeVocabulary):
        def tokenize(self, text: str, *, special: bool) -> list[int]:
            texts.append(text)
            return super().tokenize(text[:100], special=special)

    body = {
        **BODIES["/v1/chat/completions"]("hi"),
        "prediction": {"type": "content", "content": TOO_LONG * 2},
    }
    await asyncio.wait_for(Call(services(script, vocabulary=Watched()), body=body).run(), WAIT_S)
    assert max(map(len, texts)) == len(TOO_LONG)
