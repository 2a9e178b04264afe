"""Decisions through OpenAI's SDK, where it has them (3.57), else in the body that it sends."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.http_lead import Lead

QUESTIONS: list[dict[str, Any]] = [
    {"type": "predicate", "name": "angry", "instructions": "She is angry."},
    {
        "type": "choice",
        "instructions": [{"type": "input_text", "text": "Who should answer?"}],
        "choices": [{"value": "billing", "description": "money"}, {"value": "shipping"}, {"value": False}],
    },
    {
        "type": "score",
        "instructions": "How urgent is it?",
        "levels": [{"label": "can wait"}, {"label": "today"}, {"label": "now", "description": "at once"}],
    },
]
ITEMS: list[dict[str, Any]] = [
    {"role": "developer", "content": [{"type": "input_text", "text": "Be fair."}]},
    {"role": "user", "content": [{"type": "input_text", "text": "I was charged twice."}]},
    {"type": "function_call", "call_id": "c1", "name": "charges", "arguments": "{}"},
    {
        "type": "function_call_output",
        "call_id": "c1",
        "output": [{"type": "input_text", "text": "two charges"}],
    },
    {"role": "assistant", "content": [{"type": "output_text", "text": "I see two charges."}]},
    {"role": "user", "content": [{"type": "input_text", "text": "So give one back!"}]},
]


def decided(client: openai.OpenAI, **more: Any) -> Any:
    asked: dict[str, Any] = {"model": "toy", "questions": QUESTIONS, **more}
    if hasattr(client, "decisions"):
        return client.decisions.create(**asked)
    return client.post("/decisions", body=asked, cast_to=openai.BaseModel)


@pytest.mark.parametrize(
    "given", ["I was charged twice, and nobody has replied.", ITEMS], ids=["text", "items"]
)
def test_decisions_are_answered(client: openai.OpenAI, given: Any):
    told = decided(
        client,
        input=given,
        prompt_cache_key="k",
        prompt_cache_options={"mode": "implicit", "ttl": "30m"},
        safety_identifier="somebody",
    )
    angry, route, urgent = told.to_dict()["answers"]
    assert (angry["type"], angry["name"]) == ("predicate", "angry")
    assert 0 < angry["probability"] < 1
    assert route["choice"] in ("billing", "shipping", False)
    assert [one["value"] for one in route["probabilities"]] == ["billing", "shipping", False]
    assert sum(one["probability"] for one in route["probabilities"]) == pytest.approx(1)
    assert 0 <= urgent["score"] <= 2
    assert [one["label"] for one in urgent["probabilities"]] == ["can wait", "today", "now"]
    usage = told.to_dict()["usage"]
    assert usage["output_tokens"] == 0
    assert usage["input_tokens"] == usage["total_tokens"] > 0


def test_questions_see_the_whole_input(lead: Lead, client: openai.OpenAI):
    short = decided(client, input=ITEMS[-1:]).to_dict()["usage"]["input_tokens"]
    long = decided(client, input=ITEMS).to_dict()["usage"]["input_tokens"]
    n_more = len("Be fair.I was charged twice.two chargesI see two charges.")
    assert long - short > n_more * len(QUESTIONS)
    lead.until_idle()


def test_a_question_without_options_is_refused(client: openai.OpenAI):
    with pytest.raises(openai.BadRequestError) as caught:
        decided(client, input="x", questions=[{"type": "choice", "instructions": "Who?", "choices": []}])
    assert (caught.value.param or "").startswith("questions.0.choices")
