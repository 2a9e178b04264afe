"""Answers of engines, in the shapes that their documentation and their servers give."""

from __future__ import annotations

import math

import pytest

from drafters.engine_dialects import UNTOLD, EngineError, LlamaServer, LlamaServerText, Ollama, OpenAI, Said


def test_llama_server_tells_ids_and_probabilities():
    line = (
        b'data: {"index":0,"content":" a","tokens":[253],"stop":false,"id_slot":-1,"tokens_predicted":2,'
        b'"completion_probabilities":[{"id":253,"token":" a","logprob":-1.5,"top_logprobs":[]}]}'
    )
    assert LlamaServer().read(line) == [Said(" a", 253, math.exp(-1.5))]
    assert LlamaServerText().read(line) == [Said(" a", None, math.exp(-1.5))]


def test_llama_server_tells_second_choices():
    line = (
        b'data: {"content":" a","tokens":[253],"stop":false,"completion_probabilities":[{"id":253,'
        b'"logprob":-0.5,"top_logprobs":[{"id":253,"logprob":-0.5},{"id":9,"logprob":-1.5}]}]}'
    )
    assert LlamaServer().read(line) == [Said(" a", 253, math.exp(-0.5), 9, math.exp(-1.5))]
    assert LlamaServerText().read(line) == [Said(" a", None, math.exp(-0.5))], "ids mean nothing there"


@pytest.mark.parametrize(("stop_type", "ends_text"), [("eos", True), ("limit", False), ("word", False)])
def test_llama_server_ends(stop_type: str, ends_text: bool):
    line = b'data: {"content":"","tokens":[],"stop":true,"stop_type":"%s"}' % stop_type.encode()
    assert LlamaServer().read(line) == [Said(is_end=True, ends_text=ends_text)]


def test_ollama_skips_its_template():
    assert Ollama().body("text", 8, "qwen3:0.6b")["raw"] is True


def test_ollama_tells_probabilities():
    line = b'{"model":"m","response":" is","done":false,"logprobs":[{"token":" is","logprob":-0.5}]}'
    assert Ollama().read(line) == [Said(" is", None, math.exp(-0.5))]


def test_older_ollama_tells_text_only():
    assert Ollama().read(b'{"model":"m","response":" is","done":false}') == [Said(" is", None, UNTOLD)]
    assert Ollama().read(b'{"response":"","done":true,"done_reason":"stop"}') == [
        Said(is_end=True, ends_text=True)
    ]


def test_openai_tells_probabilities():
    line = (
        b'data: {"id":"c","choices":[{"index":0,"text":" is it","finish_reason":null,'
        b'"logprobs":{"tokens":[" is"," it"],"token_logprobs":[-0.5,-1.0],"text_offset":[0,3]}}]}'
    )
    assert OpenAI().read(line) == [Said(" is", None, math.exp(-0.5)), Said(" it", None, math.exp(-1.0))]


def test_lm_studio_tells_text_only():
    line = b'data: {"choices":[{"index":0,"text":" is","logprobs":null,"finish_reason":null}]}'
    assert OpenAI().read(line) == [Said(" is", None, UNTOLD)]


@pytest.mark.parametrize("line", [b"", b": ping", b"event: x", b"data: [DONE]", b'data: {"choices":[]}'])
def test_other_lines_say_nothing(line: bytes):
    assert OpenAI().read(line) == []


@pytest.mark.parametrize("line", [b"data: <html>", b"data: []", b'data: {"error":{"message":"no model"}}'])
@pytest.mark.parametrize("dialect", [LlamaServer(), OpenAI()])
def test_errors_are_told(dialect: LlamaServer | OpenAI, line: bytes):
    with pytest.raises(EngineError):
        dialect.read(line)
