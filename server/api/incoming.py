"""The body of a request, as far as all routes treat it alike."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import orjson
from pydantic import ValidationError
from starlette.requests import Request

from server.api import problem
from server.api.body import Body
from server.api.served import Served
from server.errors import InvalidRequestError, NotFoundError

B = TypeVar("B", bound=Body)


async def read_object(request: Request) -> dict[str, Any]:
    """The body as a JSON object. Raises InvalidRequestError."""
    try:
        data = orjson.loads(await request.body())
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError(f"the body is not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise InvalidRequestError("the body must be a JSON object")
    return cast(dict[str, Any], data)


def validated(form: type[B], data: dict[str, Any]) -> B:
    """The body in its form. Raises InvalidRequestError that names the field."""
    try:
        return form.model_validate(data)
    except ValidationError as error:
        raise problem.invalid(error, data) from error


def check_model(served: Served, model: str | None) -> None:
    """Raises NotFoundError unless it is the model that is served, or none in particular."""
    if model and model not in (served.model.id, "default"):
        raise NotFoundError(
            f"The model `{model}` does not exist: this server has `{served.model.id}`",
            param="model",
            code="model_not_found",
        )
