"""What a request says about sampling, drafts and grammars, as the engine is asked for it."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Any

import pytest

from server.engine.events import Finished, Started, Stats
from server.engine.request import GenerationRequest, Speculation
from server.grammar.compiler import Compiler
from server.sampling.params import ORDER, SamplingParams
from tests.contract.contract import validate
from tests.fake_backend import FakeVocabulary
from tests.server.api.scripted import N_CTX, Call, Script, services

STATS = Stats(5, 2, 1, 1, 1.0, 1.0)
EOG = FakeVocabulary.eog


async def asked(**body: Any) -> GenerationRequest:
    """Return the engine's request for a body that fits the contract."""
    body = {"messages": [{"role": "user", "content": "hi"}], **body}
    validate("ChatRequest", body)
    script = Script(Started(5, 2), Finished("stop", STATS))
    one = Call(services(script), body=body)
    await asyncio.wait_for(one.run(), 10)
    assert one.status == 200, one.json
    return script.requests[0]


PLAIN: dict[str, Any] = {
    "temperature": 1.5,
    "top_k": 7,
    "top_p": 0.5,
    "min_p": 0.25,
    "seed": 9,
    "typical_p": 0.75,
    "top_n_sigma": 2.5,
    "dynatemp_range": 0.5,
    "dynatemp_exponent": 2.0,
    "xtc_probability": 0.5,
    "xtc_threshold": 0.2,
    "repeat_penalty": 1.25,
    "repeat_last_n": -1,
    "presence_penalty": -2.0,
    "frequency_penalty": 2.0,
    "dry_multiplier": 0.75,
    "dry_base": 1.5,
    "dry_allowed_length": 3,
    "dry_penalty_last_n": 99,
    "mirostat": 2,
    "mirostat_tau": 4.0,
    "mirostat_eta": 0.2,
    "min_tokens": 3,
}


@pytest.mark.parametrize("name", PLAIN)
async def test_field_changes_only_its_sampler(name: str):
    params = (await asked(**{"seed": 1, name: PLAIN[name]})).sampling
    expected = replace(SamplingParams(seed=1), **{name: PLAIN[name]})
    if name == "min_tokens":
        expected = replace(expected, banned_first=EOG)
    if name == "dry_multiplier":
        assert params.dry_sequence_breakers == ((10,), (58,), (34,), (42,))
        params = replace(params, dry_sequence_breakers=())
    assert params == expected


async def test_every_sampler_field_is_settable():
    others = {"dry_sequence_breakers", "logit_bias", "banned_first", "samplers", "pieces"}
    assert set(PLAIN) | others == set(SamplingParams.__dataclass_fields__)


async def test_breakers_are_tokenised_lazily():
    given = ["\n", "User:", "é"]
    params = (await asked(dry_multiplier=1, dry_sequence_breakers=given)).sampling
    assert params.dry_sequence_breakers == ((10,), tuple(b"User:"), tuple("é".encode()))
    assert (await asked(dry_multiplier=1, dry_sequence_breakers=[])).sampling.dry_sequence_breakers == ()
    assert (await asked(dry_sequence_breakers=given)).sampling.dry_sequence_breakers == ()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ()),
        ({"65": -100, "7": 1.5}, ((7, 1.5), (65, -100.0))),
        ({"ab": 2, "97": 1}, ((97, 3.0), (98, 2.0))),
        ([[65, False], [66, 1]], ((65, -math.inf), (66, 1.0))),
        ([["ba", 1], [97, -0.5]], ((97, 0.5), (98, 1.0))),
        ([[65, False], ["A", 5]], ((65, -math.inf),)),
    ],
    ids=str,
)
async def test_logit_bias_in_all_its_forms(given: Any, expected: Any):
    assert (await asked(logit_bias=given)).sampling.logit_bias == expected


async def test_ignore_eos_bans_what_ends_a_reply():
    params = (await asked(ignore_eos=True, logit_bias={"257": 50, "1": 1})).sampling
    assert params.logit_bias == ((1, 1.0), (257, -math.inf), (258, -math.inf))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, ORDER),
        ([], ()),
        ("", ()),
        (
            "edkypmxti",
            ("penalties", "dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature", "infill"),
        ),
        ("min_p", ("min_p",)),
        (["min_p", "temperature"], ("min_p", "temperature")),
        (
            "penalties;dry;top-k;nucleus;typical;temp",
            ("penalties", "dry", "top_k", "top_p", "typ_p", "temperature"),
        ),
    ],
    ids=str,
)
async def test_samplers_run_in_the_order_given(given: Any, expected: Any):
    assert (await asked(samplers=given)).sampling.samplers == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
        ({"logprobs": False, "top_logprobs": 0, "n_probs": 0}, None),
        ({"n_probs": 3}, 3),
        ({"best_of": 2}, 0),
    ],
    ids=str,
)
async def test_logprobs_only_where_needed(body: Any, expected: int | None):
    script = Script(Started(5, 2), Finished("cancelled", STATS))
    await Call(services(script), body={"messages": [{"role": "user", "content": "hi"}], **body}).run()
    assert script.requests[0].n_logprobs == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, Speculation()),
        (True, Speculation()),
        (False, Speculation(n_max=0)),
        ({}, Speculation()),
        (
            {"n_max": 3, "n_min": 2, "p_min": 0.5, "exactness": "width-stable", "drafters": ["a", "b"]},
            Speculation(3, 2, 0.5, "width-stable", frozenset({"a", "b"})),
        ),
        ({"drafters": [], "exactness": "default"}, Speculation(None, 0, 0.0, "default", frozenset())),
    ],
    ids=["null", "true", "false", "nothing", "everything", "no drafters"],
)
async def test_speculative_fields_reach_the_engine(given: Any, expected: Speculation):
    assert (await asked(speculative=given)).speculation == expected


@pytest.mark.parametrize(
    "content", ["a<|im_end|>", [{"type": "text", "text": "a<|im"}, {"type": "text", "text": "_end|>"}]]
)
async def test_prediction_has_no_control_tokens(content: Any):
    request = await asked(prediction={"type": "content", "content": content}, speculative={"n_max": 2})
    assert request.speculation == Speculation(n_max=2, prediction=tuple(b"a<|im_end|>"))
    request = await asked(prediction={"type": "content", "content": "a" * (N_CTX + 1)})
    assert request.speculation.prediction == tuple(b"a" * N_CTX)  # more than a context no reply can have


async def test_invalid_grammar_is_refused():
    async def post(grammar: str) -> tuple[Call, Script]:
        script = Script(Started(5, 2), Finished("stop", STATS))
        state = replace(services(script), grammars=Compiler(FakeVocabulary()))
        one = Call(state, body={"messages": [{"role": "user", "content": "hi"}], "grammar": grammar})
        await asyncio.wait_for(one.run(), 10)
        return one, script

    _, script = await post('root ::= "a"')
    start = script.requests[0].constraint
    assert start is not None
    assert start().forced() == (ord("a"),)
    _, script = await post("")
    assert script.requests[0].constraint is None
    one, script = await post("root ::= x")
    assert not script.requests
    assert one.status == 400
    assert one.json["error"]["param"] == "grammar"
    assert "line 1, column 10" in one.json["error"]["message"]
