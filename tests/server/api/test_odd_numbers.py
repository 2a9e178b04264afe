"""Numbers at the ends of what they may be, and beyond."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from server.api.sampling_fields import MAX_INT32, SamplingFields, sampling_params
from server.sampling.params import SamplingParams
from server.speculation.wire.messages import Open, decode, encode
from tests.fake_backend import FakeVocabulary
from tests.http_lead import Lead
from tests.server.api.test_odd_inputs import BODY, post, refused, text_of


def test_float_may_be_an_integer(lead: Lead):
    whole = {"max_tokens": 4, "seed": 7, "n": 2, "temperature": 1, "top_k": 5}
    floats = {name: float(value) for name, value in whole.items()}
    first, second = (post(lead, {**BODY, **body}) for body in (whole, floats))
    assert first.json()["choices"] == second.json()["choices"]
    ids = [*b"abc"]
    tokens = httpx.post(f"{lead.url}/detokenize", json={"tokens": [float(id) for id in ids]})
    assert tokens.json() == {"content": "abc"}
    for wrong in (4.5, 2.0**60, "4"):
        assert refused(post(lead, {**BODY, "max_tokens": wrong}))["param"] == "max_tokens"


def numbers() -> list[tuple[str, float]]:
    """Return each field of the sampler at its limits, and beyond 32-bit floats."""
    found: list[tuple[str, float]] = []
    for name, field in SamplingFields.model_json_schema()["properties"].items():
        for form in field.get("anyOf", ()):
            if form.get("type") == "number":
                ends = {form.get("minimum", -1e300), form.get("maximum", 1e300), 5e-324, 1e-38, 1e38}
                low, high = form.get("minimum", -1e308), form.get("maximum", 1e308)
                found += [(name, end) for end in sorted(ends) if low <= end <= high]
            elif form.get("type") == "integer" and name != "seed":
                ends = {form.get("minimum", -(1 << 62)), form.get("maximum", 1 << 62)}
                found += [(name, end) for end in sorted(ends) if name != "min_tokens" or end == 0]
    return found


@pytest.mark.parametrize(("name", "value"), numbers())
@pytest.mark.parametrize(
    "others", [{}, {"mirostat": 2}, {"dry_multiplier": 1.0, "dynatemp_range": 0.5}], ids=str
)
def test_numbers_at_their_ends_do_no_harm(lead: Lead, name: str, value: float, others: dict[str, Any]):
    """numpy's warnings are errors in tests: nothing overflows, and nothing is made of NaNs."""
    for temperature in (0.0, 1.0):
        body = {**BODY, "temperature": temperature, "top_k": 0, "seed": 1, **others, name: value}
        assert text_of(post(lead, body))


@pytest.mark.parametrize("bias", [1e308, 1e39, -1e39, -1e308])
def test_huge_bias_forces_or_bans(lead: Lead, bias: float):
    text = text_of(post(lead, {**BODY, "temperature": 1, "logit_bias": {str(ord("e")): bias}}))
    assert set(text) == {"e"} if bias > 0 else "e" not in text


def test_any_top_k_fits_drafters():
    sampling = sampling_params(SamplingFields(top_k=1 << 62), SamplingParams(), FakeVocabulary())
    assert sampling.top_k == MAX_INT32
    told = Open("lead", 1, 1, 8, sampling, (1, 2))
    assert decode(encode(told)) == told  # whose other fields are those of a default


def test_seeds_have_64_bits_and_no_more(lead: Lead):
    body = {**BODY, "temperature": 1}
    for seed in (0, 1 << 63, (1 << 64) - 2, -(1 << 63)):
        assert text_of(post(lead, {**body, "seed": seed})) == text_of(
            post(lead, {**body, "seed": seed % (1 << 64)})
        )
    for seed in (1 << 64, -(1 << 63) - 1, 1e30, 0.5, "1"):
        error = refused(post(lead, {**body, "seed": seed}))
        assert error["param"] == "seed" or "JSON" in error["message"]
