"""POST /v1/decisions, OpenAI's beta of October 2026: probabilities of the answers to questions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from server.api.decisions.deciding import Decider
from server.api.decisions.decision_request import (
    ChoiceQuestion,
    DecisionQuestion,
    DecisionRequest,
    PredicateQuestion,
)
from server.api.decisions.questions import confidence, confidence_of_levels, expected_level
from server.api.delivery import Json as Told
from server.api.responses.items_as_messages import Conversation
from server.api.responses.response_items import ReferenceItem
from server.api.responses.response_tools import ServedTools
from server.api.services import Services
from server.api.stages.validate import read
from server.errors import FieldError

Json: TypeAlias = dict[str, Any]

NAMES = ((re.compile(r"^messages\b.*"), "input"),)
"""Patterns of a chat completion's fields, with this API's names for them."""


async def create(request: Request, services: Services) -> Response:
    """Answer each question with the probabilities of its options."""
    body = await read(request, DecisionRequest)
    said = _input_messages(body)
    salted = {"cache_salt": body.cache_salt} if body.cache_salt else {}
    decider = Decider(request, services, NAMES)
    asked = [question.asked for question in body.questions]
    found = await decider.answers({"model": body.model, **salted}, said, asked)
    answers = [_answer_json(question, one) for question, one in zip(body.questions, found, strict=True)]
    return Told({"answers": answers, "model": services.model.id, "usage": decider.cost.as_json})


def _input_messages(body: DecisionRequest) -> Sequence[Json]:
    """Return the input as chat messages."""
    if isinstance(body.input, str):
        return [{"role": "user", "content": body.input}]
    for i, item in enumerate(body.input):
        if isinstance(item, ReferenceItem):
            raise FieldError(f"input.{i}.type", "decisions take no references: send the item itself")
    conversation = Conversation(ServedTools())
    conversation.add(body.input)
    return conversation.messages


def _answer_json(question: DecisionQuestion, found: Sequence[float]) -> Json:
    """Return an answer in OpenAI's form. `found`: probabilities of its options, or of yes and no."""
    about: Json = {"type": question.type, "name": question.name}
    if isinstance(question, PredicateQuestion):
        return {**about, "probability": found[0]}
    if isinstance(question, ChoiceQuestion):
        values = [choice.value for choice in question.choices]
        return {
            **about,
            "choice": values[found.index(max(found))],
            "confidence": confidence(found),
            "probabilities": [
                {"value": value, "probability": one} for value, one in zip(values, found, strict=True)
            ],
        }
    return {
        **about,
        "score": expected_level(found),
        "confidence": confidence_of_levels(found),
        "probabilities": [
            {"label": level.label, "value": i, "probability": one}
            for i, (level, one) in enumerate(zip(question.levels, found, strict=True))
        ],
    }
