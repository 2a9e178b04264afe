"""What the extension llama.vscode sends to llama-server, by its public source.

No field is refused, with the values that it sends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from server.llama.backend import FillInMiddle
from tests.fake_backend import FakeBackend, FakeModel, FakeVocabulary
from tests.http_lead import Lead, serving

CHUNKS = [{"text": "int main() {}", "time": 1763000000000, "filename": "main.c"}]
SETTLED: dict[str, Any] = {"top_k": 40, "top_p": 0.99, "stream": False, "cache_prompt": True}
LIMITS = {"t_max_prompt_ms": 500, "t_max_predict_ms": 2500}


class Infilling(FakeVocabulary):
    fim = FillInMiddle(11, 12, 13)


@pytest.fixture(scope="module")
def lead() -> Iterator[Lead]:
    backend = FakeBackend(FakeModel(seed=3, eog_rate=0.05), n_ctx=512)
    with serving(replace(backend, vocab=Infilling())) as one:
        yield one


def asked(lead: Lead, path: str, **body: Any) -> dict[str, Any]:
    response = httpx.post(f"{lead.url}{path}", json=body, timeout=20)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("chunks", [CHUNKS, []])
def test_chunks_are_evaluated_beforehand(lead: Lead, chunks: list[Any]):
    body: dict[str, Any] = {"input_prefix": "", "input_suffix": "", "input_extra": chunks, "prompt": ""}
    quick = {"t_max_prompt_ms": 500, "t_max_predict_ms": 1}
    told = asked(lead, "/infill", **body, n_predict=0, samplers=[], cache_prompt=True, **quick)
    assert (told["stop"], told["tokens_predicted"]) == (True, 1)


@pytest.mark.parametrize("indented", [{}, {"n_indent": 4}])
def test_a_completion_has_what_it_shows(lead: Lead, indented: dict[str, int]):
    body = {"input_prefix": "def f():\n", "input_suffix": "\n", "prompt": "    ret", "input_extra": CHUNKS}
    samplers = ["top_k", "top_p", "infill"]
    told = asked(lead, "/infill", **body, n_predict=128, samplers=samplers, **SETTLED, **LIMITS, **indented)
    assert isinstance(told["content"], str)
    assert isinstance(told["truncated"], bool)
    assert told["tokens_cached"] > 0
    shown = {f"{what}_{unit}" for what in ("prompt", "predicted") for unit in ("n", "ms", "per_second")}
    assert shown <= set(told["timings"])
    assert told["generation_settings"]["samplers"] == samplers


def test_edit_is_a_lettered_chat(lead: Lead):
    told = asked(
        lead,
        "/v1/chat/completions",
        messages=[
            {"role": "system", "content": "You are an expert coder."},
            {"role": "user", "content": "Modify this."},
        ],
        stream=False,
        cache_prompt=True,
        samplers="edkypmxt",
        temperature=0.8,
        dynatemp_range=0,
        dynatemp_exponent=1,
        top_k=40,
        top_p=0.95,
        min_p=0.05,
        typical_p=1,
        xtc_probability=0,
        xtc_threshold=0.1,
        repeat_last_n=64,
        repeat_penalty=1,
        presence_penalty=0,
        frequency_penalty=0,
        dry_multiplier=0,
        dry_base=1.75,
        dry_allowed_length=2,
        dry_penalty_last_n=-1,
        max_tokens=-1,
        timings_per_token=False,
    )
    assert isinstance(told["choices"][0]["message"]["content"], str)
