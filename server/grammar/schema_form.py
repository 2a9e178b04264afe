"""Walk JSON schemas as trees of schemas, and check the form of each keyword. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias, cast

from server.errors import FieldError

Schema: TypeAlias = Mapping[str, Any]
Path: TypeAlias = tuple[str | int, ...]

_NAMED = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
_LISTED = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = (
    "items",
    "additionalItems",
    "unevaluatedItems",
    "contains",
    "additionalProperties",
    "unevaluatedProperties",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
)
COUNTS = (
    *("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"),
    *("minContains", "maxContains"),
)


_Form: TypeAlias = tuple[Callable[[Any], bool], str]
"""A function that returns True for valid values, and the message about invalid ones."""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _is_bound(value: Any) -> bool:
    return isinstance(value, bool) or _is_number(value)  # draft 4 has true and false beside `minimum`


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, cast(list[Any], value)))


def _is_type(value: Any) -> bool:
    return _is_text(value) or _is_texts(value)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_anything(_: Any) -> bool:
    return True


_ANYTHING: _Form = (_is_anything, "")
_OBJECT: _Form = (_is_object, "must be an object")
_LIST: _Form = (_is_list, "must be a list")
_TEXT: _Form = (_is_text, "must be a text")
_COUNT: _Form = (_is_count, "must be a whole number, 0 or more")
_NUMBER: _Form = (_is_number, "must be a number")
_BOUND: _Form = (_is_bound, "must be a number")
_FORMS: Mapping[str, _Form] = {
    **dict.fromkeys(_NAMED, _OBJECT),
    **dict.fromkeys(_LISTED, _LIST),
    **dict.fromkeys(COUNTS, _COUNT),
    **dict.fromkeys(("minimum", "maximum", "multipleOf"), _NUMBER),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _BOUND),
    **dict.fromkeys(("$ref", "pattern", "format"), _TEXT),
    "type": (_is_type, "must be a text or a list of texts"),
    "required": (_is_texts, "must be a list of texts"),
    "enum": _LIST,
}
"""Checks of the values of known keywords, except keywords whose value is a schema (_SINGLE)."""


def is_absent(keyword: str, value: Any) -> bool:
    """Return True if a keyword counts as absent.

    A known keyword counts as absent if its value is null, which some clients write for absent fields.
    `required` also counts as absent if its value is true or false, as in draft 3.
    """
    known = keyword in _FORMS or keyword in _SINGLE
    return (value is None and known) or (keyword == "required" and isinstance(value, bool))


def subschemas(schema: Schema) -> list[tuple[Path, Schema]]:
    """Return the schemas (except true and false) directly within this schema, each with its path."""
    return [(steps, inner) for steps, inner in _inner_schemas(schema) if isinstance(inner, dict)]


def within(schema: Schema) -> Iterator[tuple[Path, Any]]:
    """Yield all schemas within this schema, and all referenced ones, each with its path.

    The first is the schema itself. Invalid values at the position of a schema are included.
    """
    seen = set[int]()
    todo: list[tuple[Path, Any]] = [((), schema)]
    while todo:
        path, one = todo.pop()
        if id(one) in seen:
            continue
        yield path, one
        if isinstance(one, dict):
            seen.add(id(cast(Any, one)))
            inner = [((*path, *steps), found) for steps, found in _inner_schemas(cast(Schema, one))]
            todo += reversed([*inner, *referred(cast(Schema, one), schema)])


def _inner_schemas(schema: Schema) -> Iterator[tuple[Path, Any]]:
    for keyword, value in schema.items():
        if keyword in _NAMED and isinstance(value, dict):
            yield from (((keyword, name), inner) for name, inner in cast(Schema, value).items())
        elif keyword in (*_LISTED, "items") and isinstance(value, list):
            yield from (((keyword, i), inner) for i, inner in enumerate(cast(list[Any], value)))
        elif keyword in _SINGLE and not is_absent(keyword, value):
            yield (keyword,), value


def referred(schema: Schema, root: Schema) -> Iterator[tuple[Path, Schema]]:
    """Yield the target of this schema's $ref and its path in `root`; nothing if there is no such target."""
    start, *steps = str(schema.get("$ref")).split("/")
    found: Any = root
    for step in steps:
        found = cast(Schema, found).get(step) if isinstance(found, dict) else None
    if start == "#" and isinstance(found, dict):
        yield tuple(steps), cast(Schema, found)


def check_form(schema: Schema, param: str) -> None:
    """Raise an error for a keyword whose value has an invalid form.

    Args:
        schema: The schema in the request.
        param: The schema's field in the request.

    Raises:
        FieldError: A value has an invalid form; the message names the keyword's path.
    """
    for path, one in within(schema):
        if isinstance(one, bool):
            continue
        if not isinstance(one, dict):
            raise form_error(param, path, "must be a schema: an object, true or false")
        for keyword, value in cast(Schema, one).items():
            fits, why = _FORMS.get(keyword, _ANYTHING)
            if not fits(value) and not is_absent(keyword, value):
                raise form_error(param, (*path, keyword), why)


def form_error(param: str, path: Path, why: str) -> FieldError:
    """Return an error with message `why` about the part at `path` of the schema in the field `param`."""
    place = ".".join(map(str, (param, *path)))
    return FieldError(place, why)
