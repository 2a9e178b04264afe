"""Decisions: probabilities of given answers, in OpenAI's form and in llama-server's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from server.api.decisions.questions import Option, Question, confidence, confidence_of_levels, expected_level
from server.llama.backend import Logits
from server.sampling.noise import lower_noise, mix
from tests.contract.contract import validate
from tests.fake_backend import FakeBackend, FakeModel, FakeVocabulary
from tests.http_lead import Lead, serving

STATE = "I was charged twice, and nobody has replied."
ROUTE: dict[str, Any] = {
    "type": "choice",
    "name": "route",
    "instructions": "Who should answer?",
    "choices": [{"value": "billing", "description": "money"}, {"value": "shipping"}, {"value": True}],
}
ANGRY: dict[str, Any] = {
    "type": "predicate",
    "instructions": [{"type": "input_text", "text": "She is angry."}],
}
URGENT: dict[str, Any] = {
    "type": "score",
    "instructions": "How urgent is it?",
    "levels": [{"label": "can wait"}, {"label": "today"}, {"label": "now", "description": "at once"}],
}


def decided(lead: Lead, *questions: dict[str, Any], input: Any = STATE, **more: Any) -> dict[str, Any]:
    body = {"model": "toy", "input": input, "questions": list(questions), **more}
    response = httpx.post(f"{lead.url}/v1/decisions", json=body, timeout=30)
    assert response.status_code == 200, response.text
    validate("Decision", response.json())
    lead.until_idle()
    return response.json()


def refused(lead: Lead, path: str = "/v1/decisions", **body: Any) -> str | None:
    whole: dict[str, Any] = {"input": STATE, "state": STATE, "questions": [ANGRY], **body}
    response = httpx.post(lead.url + path, json=whole, timeout=30)
    assert response.status_code == 400, response.text
    return response.json()["error"]["param"]


class Lettered(FakeModel):
    """The toy model, writing capitals too."""

    def logits(self, chain: int) -> Logits:
        row = super().logits(chain)
        letters = np.arange(ord("A"), ord("Z") + 1)
        row[letters] = self.sharpness * lower_noise(mix(chain ^ mix(self.seed)), 0, letters)
        return row


@pytest.fixture(scope="module")
def lead() -> Iterator[Lead]:
    with serving(FakeBackend(Lettered(seed=3, eog_rate=0.0))) as one:
        yield one


def expected(lead: Lead, question: Question, labels: list[str]) -> list[float]:
    """Return the toy model's own probabilities of the labels after the prompt."""
    messages = [
        {"role": "user", "content": f"{STATE}\n\n{question.text}"},
        {"role": "assistant", "content": "Answer:"},
    ]
    told = httpx.post(f"{lead.url}/apply-template", json={"messages": messages}).json()["prompt"]
    tokens = FakeVocabulary().tokenize(told + " ", special=True)
    chain = 0
    for token in tokens:
        chain = mix(chain + token + 1)
    row = Lettered(seed=3, eog_rate=0.0).logits(chain)[[ord(label) for label in labels]].astype(np.float64)
    weights = np.exp(row - row.max())
    return list(weights / weights.sum())


def test_probabilities_are_those_of_the_model(lead: Lead):
    choice, predicate, score = decided(lead, ROUTE, ANGRY, URGENT)["answers"]
    options = [Option("billing", "money"), Option("shipping"), Option("true")]
    by_model = expected(lead, Question("Who should answer?", options), ["A", "B", "C"])
    found = [one["probability"] for one in choice["probabilities"]]
    assert found == pytest.approx(by_model, rel=1e-4)
    assert [one["value"] for one in choice["probabilities"]] == ["billing", "shipping", True]
    assert choice["choice"] == ["billing", "shipping", True][int(np.argmax(found))]
    assert choice["confidence"] == pytest.approx(confidence(found))
    assert choice["name"] == "route"
    yes, _ = expected(lead, Question("She is angry."), ["Y", "N"])
    assert predicate["probability"] == pytest.approx(yes, rel=1e-4)
    levels = [one["probability"] for one in score["probabilities"]]
    assert sum(levels) == pytest.approx(1)
    assert score["score"] == pytest.approx(expected_level(levels))
    assert [one["label"] for one in score["probabilities"]] == ["can wait", "today", "now"]


def test_questions_share_the_prompt(lead: Lead):
    usage = decided(lead, ANGRY, URGENT, input="a very long story. " * 40)["usage"]
    assert usage["input_tokens_details"]["cached_tokens"] > 700
    assert usage["output_tokens"] == 0


def test_twenty_options_cost_one_prompt(lead: Lead):
    twenty = {**ROUTE, "choices": [{"value": f"team {i}"} for i in range(20)]}
    lead.backend.widths.clear()
    usage = decided(lead, twenty, input="another story, told at length. " * 20)["usage"]
    decided_widths, n = (
        lead.backend.widths[:],
        usage["input_tokens"] - usage["input_tokens_details"]["cached_tokens"],
    )
    lead.backend.widths.clear()
    plain = {"messages": [{"role": "user", "content": "x" * n}], "max_tokens": 1}
    assert httpx.post(f"{lead.url}/v1/chat/completions", json=plain, timeout=30).status_code == 200
    assert n > 700
    assert sum(decided_widths) <= 1.02 * n
    assert len(decided_widths) <= len(lead.backend.widths) + 1


def test_many_options_have_labels_of_several_tokens(lead: Lead):
    many = {**ROUTE, "choices": [{"value": f"team {i}"} for i in range(60)]}
    [answer] = decided(lead, many)["answers"]
    found = [one["probability"] for one in answer["probabilities"]]
    assert sum(found) == pytest.approx(1)
    assert min(found) > 0
    usage = decided(lead, many)["usage"]
    assert usage["input_tokens_details"]["cached_tokens"] >= usage["input_tokens"] - 2


def test_a_conversation_can_be_decided_about(lead: Lead):
    items: list[Any] = [
        {"role": "user", "content": [{"type": "input_text", "text": "look"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "found"},
    ]
    [answer] = decided(lead, ANGRY, input=items)["answers"]
    assert 0 <= answer["probability"] <= 1


def test_llama_servers_form(lead: Lead):
    questions = {
        "route": {
            "type": "choice",
            "instructions": "Who should answer?",
            "criteria": {"billing": "money", "b": None},
        },
        "angry": {"type": "noul", "instructions": {"is": "she angry"}, "criteria": {"true": "in capitals"}},
        "urgent": {"type": "score", "instructions": "How urgent?", "criteria": ["can wait", "now"]},
    }
    body = {"state": {"message": STATE}, "questions": questions}
    response = httpx.post(f"{lead.url}/v1/systemone", json=body, timeout=30)
    validate("StateDecision", response.json())
    answers = response.json()["answers"]
    assert answers["route"]["choice"] in ("billing", "b")
    assert sum(answers["route"]["probabilities"].values()) == pytest.approx(1)
    assert answers["urgent"]["legend"] == {"0": "can wait", "1": "now"}
    assert 0 <= answers["angry"]["noul"] <= 1
    assert response.json()["usage"]["output_tokens"] == 0


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"questions": []}, "questions"),
        ({"questions": [{"type": "guess", "instructions": "x"}]}, "questions.0.type"),
        ({"questions": [{**ROUTE, "choices": [{"value": "a"}]}]}, "questions.0.choices"),
        ({"questions": [{**ROUTE, "choices": [{"value": "a"}, {"value": "a"}]}]}, "questions.0.choices"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0.type"),
        ({"input": [{"id": "msg_1"}]}, "input.0.type"),
        ({"input": "x" * 9000}, "input"),
    ],
)
def test_undecidable_question_is_refused(lead: Lead, body: dict[str, Any], param: str):
    assert refused(lead, **body) == param


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"questions": {"a": {"type": "choice", "instructions": "x"}}}, "questions.a"),
        ({"questions": {"a": {"type": "score", "instructions": "x", "criteria": ["one"]}}}, "questions.a"),
        ({"questions": {}}, "questions"),
        (
            {
                "questions": {"a": {"type": "noul", "instructions": "x"}},
                "images": ["data:image/png;base64,AA"],
            },
            "images",
        ),
    ],
)
def test_llama_servers_form_is_refused_alike(lead: Lead, body: dict[str, Any], param: str):
    assert refused(lead, "/v1/systemone", **body) == param


def test_confidence_is_that_of_the_field():
    assert confidence([0.25] * 4) == pytest.approx(0)
    assert confidence([0, 1, 0]) == pytest.approx(1)
    assert confidence([0.6, 0.4]) == pytest.approx(0.2)
    assert confidence_of_levels([0, 0, 1]) == pytest.approx(1)
    assert confidence_of_levels([0.5, 0, 0.5]) == 0
    assert confidence_of_levels([0.1, 0.8, 0.1]) == pytest.approx(0.7)


def test_no_label_begins_another():
    for n in (2, 26, 27, 255):
        labels = Question("x", [Option(str(i)) for i in range(n)]).labels
        assert len(set(labels)) == n
        assert len({len(label) for label in labels}) == 1
    assert json.dumps(Question("x").labels) == '["Yes", "No"]'
