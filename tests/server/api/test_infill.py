"""POST /infill: which tokens the model is given, and what it answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from server.engine.events import Finished, Started, Stats
from server.llama.backend import FillInMiddle
from tests.contract.contract import validate
from tests.fake_backend import FakeVocabulary
from tests.server.api.scripted import N_CTX, Call, Script, services
from tests.server.api.test_completions import WithBos, step

EXTRA = [{"filename": "a.py", "text": "AA"}, {"text": "B"}]


class Infilling(WithBos):
    fim = FillInMiddle(11, 12, 13)


class OfFiles(WithBos):
    fim = FillInMiddle(11, 12, 13, 14, 15)


async def ask(vocabulary: FakeVocabulary, **body: Any) -> tuple[Call, list[int]]:
    """Return the answer, and the prompt if there was one."""
    script = Script(Started(5, 2), step(b"x"), Finished("stop", Stats(5, 2, 1, 1, 1.0, 2.0)))
    given = {"input_prefix": "ab", "input_suffix": "cd", **body}
    call = Call(services(script, vocabulary=vocabulary), "/infill", given)
    await asyncio.wait_for(call.run(), 10)
    return call, list(script.requests[0].prompt) if script.requests else []


async def test_infill_answers_like_llama_server():
    call, prompt = await ask(Infilling(), prompt="e")
    assert prompt == [256, 11, *b"abe", 12, *b"cd", 13]
    assert call.status == 200, call.content
    validate("NativeReply", call.json)
    assert call.json["content"] == "x"


@pytest.mark.parametrize(
    ("vocabulary", "seen"),
    [
        (Infilling(), [*b"AAB"]),
        (OfFiles(), [14, *b"myproject\n", 15, *b"a.py\nAA", 15, *b"tmp\nB", 15, *b"filename\n"]),
    ],
)
async def test_other_texts_come_before(vocabulary: FakeVocabulary, seen: list[int]):
    _, prompt = await ask(vocabulary, input_extra=EXTRA)
    assert prompt == [256, *seen, 11, *b"ab", 12, *b"cd", 13]


async def test_other_texts_keep_their_end():
    extra = [{"text": "A" * N_CTX}, {"text": "the end"}]
    _, prompt = await ask(Infilling(), input_extra=extra, n_predict=100)
    assert len(prompt) <= N_CTX - 100 + 1
    assert bytes(prompt[-14:-7]) == b"the end"
    _, short = await ask(Infilling(), input_extra=extra, n_predict=N_CTX)
    assert short == [256, 11, *b"ab", 12, *b"cd", 13]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input_prefix": None}, "input_prefix"),
        ({"input_suffix": 1}, "input_suffix"),
        ({"input_extra": "x"}, "input_extra"),
        ({"input_extra": [{"filename": "a"}]}, "input_extra.0.text"),
        ({"prompt": [1, 2]}, "prompt"),
        ({"suffix": "x"}, "suffix"),
        ({"input_prefix": "x" * (N_CTX + 1)}, "input_prefix"),
    ],
)
async def test_unsupported_infill_field_is_refused(body: dict[str, Any], param: str):
    call, _ = await ask(Infilling(), **body)
    assert (call.status, call.json["error"]["param"]) == (400, param)


async def test_other_models_cannot():
    call, _ = await ask(FakeVocabulary())
    assert (call.status, call.json["error"]["type"]) == (501, "not_supported_error")
