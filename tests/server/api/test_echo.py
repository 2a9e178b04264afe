"""Completions that echo their prompt: where its tokens are in the text."""

from __future__ import annotations

import pytest

from server.engine.events import Progress, Started
from server.sampling.logprobs import TokenLogprobs
from tests.contract.contract import validate
from tests.fake_backend import FakeVocabulary, Spacing
from tests.server.api.scripted import Script
from tests.server.api.test_completions import WithBos, answer, ended, step


class SpacedWithBos(Spacing):
    bos = 256
    add_bos = True


@pytest.mark.parametrize("vocabulary", [FakeVocabulary(), WithBos(), Spacing(), SpacedWithBos()])
async def test_offsets_are_those_of_the_text_with_its_control_tokens(vocabulary: FakeVocabulary):
    prompt = "é<|im_start|>user\nhi"
    tokens = [256] * vocabulary.add_bos + vocabulary.tokenize(prompt, special=True)
    of_prompt = Progress(len(tokens), logprobs=tuple(TokenLogprobs(token, -0.5) for token in tokens[1:]))
    script = Script(Started(len(tokens), 0), of_prompt, step(b"ok", with_logprobs=True), ended(2))
    one = await answer(script, vocabulary=vocabulary, prompt=prompt, echo=True, logprobs=1)
    validate("Completion", one.json)
    assert script.requests[0].prompt == tokens
    [choice] = one.json["choices"]
    assert choice["text"] == f"{prompt}ok"
    told = choice["logprobs"]
    before = len(tokens) + 2 - 12
    assert told["text_offset"] == [*[0] * (before + 2), 1, *range(13, 22)]
    assert told["tokens"][before + 2 :] == ["<|im_start|>", *"user\nhiok"]
