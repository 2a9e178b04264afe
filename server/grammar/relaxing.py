"""Remove the parts of a schema that no grammar can enforce, for calls that need not fit the whole schema."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, cast

from server.errors import FieldError
from server.grammar.json_schema import Allowance, Fault, blame
from server.grammar.schema_form import Path, Schema, within

ANY_OBJECT: Schema = {"type": "object"}
MAX_ROUNDS = 32
"""Maximum faults that are removed from a schema one by one; with more, it becomes any object.

Finding one fault may take as long as MAX_BLAME (json_schema.py) allows.
"""
_UNKNOWN = re.compile(r"^Unimplemented keys: (\[.*\])")
"""llguidance's message about all keywords that it does not know in a part of a schema."""
_TOGETHER = {"if": ("then", "else"), "contains": ("minContains", "maxContains")}
"""For a keyword, the keywords that have no meaning without it."""


_OF_PARTS = ("properties", "patternProperties", "$defs", "definitions")


def relaxed(schema: Schema, fault: Fault) -> tuple[Schema, list[str]]:
    """Return the part of a schema that a grammar can enforce, and the paths of the omitted parts.

    The path "" means the whole schema.

    Args:
        schema: A valid JSON schema.
        fault: Returns the compiler's complaint about a schema, None if it has none.
    """
    held: dict[str, Any] = json.loads(json.dumps(schema))
    left_out: list[str] = []
    for _ in range(MAX_ROUNDS):
        place = _place_of_fault(held, fault)
        if place is None:
            return held, left_out
        if not place:
            break
        _leave_out(held, place)
        left_out.append(".".join(map(str, place)))
    return ANY_OBJECT, [""]


def _place_of_fault(schema: Schema, fault: Fault) -> Path | None:
    """Return the path of a part that cannot be enforced; () if unknown, None if there is no such part."""
    try:
        written = json.loads(Allowance().written(schema, ""))
    except FieldError as error:
        return _named_steps(schema, error.param or "")
    why = fault(written)
    if why is None:
        return None
    if (unknown := _UNKNOWN.match(why)) is not None:
        keys = re.findall(r'"([^"]+)"', unknown[1])
        return _first_match(schema, lambda keyword: keyword in keys)
    return blame(written, fault)[0]


def _named_steps(schema: Schema, place: str) -> Path:
    """Return the path of a keyword, given its position as error messages write it; () if there is none.

    place: The steps of the path, each with a dot before it.
    """
    for path, one in within(schema):
        for keyword in cast(Schema, one) if isinstance(one, dict) else ():
            if ".".join(map(str, ("", *path, keyword))) == place:
                return (*path, keyword)
    return ()


def _first_match(schema: Schema, wanted: Callable[[str], bool]) -> Path:
    found = (
        (*path, str(keyword))
        for path, one in within(schema)
        for keyword in (cast(Schema, one) if isinstance(one, dict) else ())
        if wanted(str(keyword))
    )
    return next(found, ())


def _leave_out(schema: dict[str, Any], place: Path) -> None:
    """Remove the keyword at the path `place`. A part there becomes {}, which allows any value.

    `oneOf` becomes `anyOf`. Keywords that have no meaning without the removed one are removed too.
    """
    *steps, last = place
    inner: Any = schema
    for step in steps:
        inner = inner[step]
    if isinstance(inner, list):
        inner[cast(int, last)] = {}
        return
    value = inner.pop(last, None)
    if last == "oneOf":
        inner.setdefault("anyOf", value)
    for beside in _TOGETHER.get(str(last), ()):
        inner.pop(beside, None)
    if steps and steps[-1] in _OF_PARTS:
        inner[last] = {}
