"""The body of a request, as far as all routes treat it alike."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import orjson
from pydantic import ValidationError
from starlette.requests import Request

from server.api import problem
from server.api.access import salt_of
from server.api.body import Body
from server.api.generation_fields import MAX_SALT
from server.api.served import Served
from server.errors import InvalidRequestError, NotFoundError

B = TypeVar("B", bound=Body)


async def read_object(request: Request) -> dict[str, Any]:
    """The body as a JSON object; with API keys its cache_salt is one that no other key's requests have, see
    access.py. Raises InvalidRequestError."""
    try:
        data = orjson.loads(await request.body())
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError(f"the body is not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise InvalidRequestError("the body must be a JSON object")
    return salted(request, cast(dict[str, Any], data))


def salted(request: Request, data: dict[str, Any]) -> dict[str, Any]:
    """The same with the caller's own cache_salt. One that is not valid is left for the validation to find."""
    given = data.get("cache_salt")
    if given is not None and not (isinstance(given, str) and len(given) <= MAX_SALT):
        return data
    salt = salt_of(request, given)
    return {**data, "cache_salt": salt} if salt else data


def validated(form: type[B], data: dict[str, Any]) -> B:
    """The body in its form. Raises InvalidRequestError that names the field."""
    try:
        return form.model_validate(data)
    except ValidationError as error:
        raise problem.invalid(error, data) from error


def check_model(served: Served, model: str | None) -> None:
    """Raises NotFoundError unless it is the model that is served, or none in particular."""
    if model and not served.model.is_called(model):
        raise NotFoundError(
            f"The model `{model}` does not exist: this server has `{served.model.id}`",
            param="model",
            code="model_not_found",
        )
