"""Describe the errors of a body in JSON's terms instead of pydantic's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from server.errors import FieldError, InvalidRequestError

_KINDS = {
    "string_type": "a text",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}
"""The required type of a value, by pydantic's type of error."""
_TEXTS = {
    "missing": "required",
    "extra_forbidden": "there is no such field",
    "literal_error": "must be {expected}",
    "finite_number": "must be a finite number",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "too_long": "at most {max_length} entries",
    "too_short": "at least {min_length} entries",
    "string_too_long": "at most {max_length} characters",
    "string_too_short": "at least {min_length} characters",
    "string_pattern_mismatch": "must match {pattern}",
    "value_error": "{error}",
}


def invalid(error: ValidationError, data: object) -> InvalidRequestError:
    """Return the error to report for the first invalid field of a body.

    If a field has several forms, the deepest error is reported, because it concerns the intended form. Among
    equally deep errors, one that does not concern the type is preferred.
    """
    complaints = error.errors(include_url=False)
    field = complaints[0]["loc"][:1]
    found = [
        (_data_path(one["loc"], data, ends_missing=one["type"] == "missing"), one)
        for one in complaints
        if one["loc"][:1] == field
    ]
    path, worst = max(found, key=lambda pair: (len(pair[1]["loc"]), pair[1]["type"] not in _KINDS))
    kinds = [_KINDS[one["type"]] for place, one in found if place == path and one["type"] in _KINDS]
    message = (
        f"must be {' or '.join(dict.fromkeys(kinds))}" if worst["type"] in _KINDS else _error_text(worst)
    )
    param = ".".join(path) or None
    return FieldError(param, message) if param else InvalidRequestError(message)


def _error_text(complaint: ErrorDetails) -> str:
    text = _TEXTS.get(complaint["type"])
    return complaint["msg"] if text is None else text.format(**complaint.get("ctx", {}))


def _data_path(places: Sequence[str | int], data: object, *, ends_missing: bool) -> list[str]:
    """Return pydantic's path `places` to a part of the body `data`, as strings without the tags of unions.

    If `ends_missing`, the last element of `places` is a field that `data` lacks.
    """
    path: list[str] = []
    for i, place in enumerate(places):
        if isinstance(data, dict) and place in data:
            data = cast(dict[Any, object], data)[place]
        elif isinstance(data, list) and isinstance(place, int):
            data = cast(list[object], data)[place]
        elif not ends_missing or i < len(places) - 1 or not isinstance(data, dict):
            continue
        path.append(str(place))
    return path
