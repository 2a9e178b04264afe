"""POST /v1/systemone, as in llama-server: typed questions about a state, answered by probabilities."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, cast

from pydantic import AfterValidator, Field, model_validator
from starlette.requests import Request
from starlette.responses import Response

from server.api.body import Body, Neutral
from server.api.decisions.deciding import Decider
from server.api.decisions.questions import (
    MOST_OPTIONS,
    Option,
    Question,
    confidence,
    confidence_of_levels,
    expected_level,
)
from server.api.delivery import Json as Told
from server.api.generation_fields import MAX_SALT
from server.api.services import Services
from server.api.stages.validate import read
from server.grammar.json_schema import MAX_DEPTH, depth

Json: TypeAlias = dict[str, Any]

NAMES = ((re.compile(r"^messages\b.*"), "state"),)
"""Patterns of a chat completion's fields, with this API's names for them."""
MOST_LEVELS = 10
"""Maximum levels of a score, as in llama-server."""


def _refuse_deep_nesting(value: Any) -> Any:
    if depth(value) > MAX_DEPTH:
        raise ValueError(f"must not be nested more than {MAX_DEPTH} levels deep")
    return value


Anything: TypeAlias = Annotated[str | dict[str, Any] | list[Any], AfterValidator(_refuse_deep_nesting)]


class StateQuestion(Body):
    type: Literal["choice", "score", "noul"]
    instructions: Anything
    criteria: Anything | None = None
    """For a choice, an object of options and their descriptions. For a score, a list of levels, the lowest
    first. For a noul (yes or no), the descriptions of true and false."""

    @model_validator(mode="after")
    def _has_its_criteria(self) -> StateQuestion:
        given = self.criteria
        if self.type == "choice" and not (isinstance(given, dict) and 0 < len(given) <= MOST_OPTIONS):
            raise ValueError(f"a choice needs criteria: an object of 1 to {MOST_OPTIONS} options")
        if self.type == "score" and not (isinstance(given, list) and 2 <= len(given) <= MOST_LEVELS):
            raise ValueError(f"a score needs criteria: a list of 2 to {MOST_LEVELS} levels")
        if self.type == "noul" and not isinstance(given, dict | None):
            raise ValueError("criteria of a noul are an object with true and false")
        return self

    @property
    def options(self) -> Mapping[str, Any]:
        """Return the possible answers with their descriptions; none for a yes-or-no question."""
        if self.type == "noul":
            return {}
        if isinstance(self.criteria, list):
            return {str(i): level for i, level in enumerate(self.criteria)}
        return cast(Json, self.criteria)

    @property
    def asked(self) -> Question:
        """Return the question for the model."""
        said = _as_text(self.instructions)
        if self.type == "noul" and isinstance(self.criteria, dict):
            words = {"true": "Yes", "false": "No"}
            told = (f"{words[key]}: {_as_text(self.criteria[key])}" for key in words if key in self.criteria)
            said = "\n".join((said, *told))
        options = [Option(key, "" if one is None else _as_text(one)) for key, one in self.options.items()]
        return Question(said, options, ordered=self.type == "score")


class StateRequest(Body):
    """Body of POST /v1/systemone."""

    state: Anything
    """The model reads it as JSON unless it is a text."""
    questions: Annotated[dict[str, StateQuestion], Field(min_length=1)]
    """Questions by their ids."""
    model: str | None = None
    cache_salt: Annotated[str, Field(max_length=MAX_SALT)] | None = None

    unsupported: ClassVar[Neutral] = {"images": ([],), "videos": ([],)}


async def create(request: Request, services: Services) -> Response:
    """Answer each question with the probabilities of its options."""
    body = await read(request, StateRequest)
    salted = {"cache_salt": body.cache_salt} if body.cache_salt else {}
    decider = Decider(request, services, NAMES)
    asked = [question.asked for question in body.questions.values()]
    said = [{"role": "user", "content": _as_text(body.state)}]
    found = await decider.answers({"model": body.model, **salted}, said, asked)
    answers = {
        id: _answer_json(question, one)
        for (id, question), one in zip(body.questions.items(), found, strict=True)
    }
    usage = {"input_tokens": decider.cost.n_prompt, "output_tokens": 0}
    return Told({"model": services.model.id, "answers": answers, "usage": usage})


def _answer_json(question: StateQuestion, found: Sequence[float]) -> Json:
    """Return an answer in llama-server's form. `found`: probabilities of its options, or of yes and no."""
    if question.type == "noul":
        return {"type": "noul", "noul": found[0]}
    options = question.options
    told: Json = {"type": question.type, "probabilities": dict(zip(options, found, strict=True))}
    if question.type == "choice":
        return {**told, "choice": list(options)[found.index(max(found))], "confidence": confidence(found)}
    level = {"score": expected_level(found), "legend": dict(options)}
    return {**told, **level, "confidence": confidence_of_levels(found)}


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
