"""Limit the JSON schemas of a request, and find the wrong part of a schema."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal, TypeAlias, TypeGuard, cast
from urllib.parse import quote

from server.grammar.endless import endless_at
from server.grammar.schema_form import (
    COUNTS,
    Path,
    Schema,
    check_form,
    form_error,
    is_absent,
    subschemas,
    within,
)
from server.grammar.unfolding import n_unfolded

Fault: TypeAlias = Callable[[Schema], str | None]

MAX_CHARACTERS = 1 << 16  # of one schema: the slowest known one, URIs with limited lengths, compiles in 2 s
MAX_TOGETHER = 4 * MAX_CHARACTERS  # of all schemas of a request
MAX_UNFOLDED = 20_000
"""Maximum subschemas in a schema with references expanded. With llguidance 1.9.1, 16,000 take 1 s and
140 MB, and 2 million took 86 s and 1.2 GB. Without references a schema of MAX_CHARACTERS has 6,500. Twice:
twice the time and memory."""
MAX_DEPTH = 120  # llguidance's parser gives up at 128
MAX_MULTIPLE = 50_000
"""Maximum states of all automata for multipleOf in a request. The number of a schema's states is the least
common multiple of its values, without decimal points and final zeros. 50,000 take half a second and 20 MB."""
MAX_BLAME = 200_000
"""Characters of schemas compiled to find the wrong part: up to 5 s for the slowest schemas known."""
TRY = 1_000  # fixed cost of compiling any part, in characters that take as long

MAX_COUNT = 1 << 31
"""Number of characters, items or members that no reply reaches, so that larger maxima have no effect.
llguidance 1.9.1 accepts limits of string lengths below 2^32."""
MAX_BOUND, LEAST_BOUND = 9e18, 1e-30
"""Largest and smallest bounds above 0 that llguidance 1.9.1 accepts: integers have 64 bits, and it writes all
digits of fractions."""
_MOST_COUNTS = frozenset({"maxLength", "maxItems", "maxProperties", "maxContains"})
_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})

_IDLE: Mapping[str, Sequence[Any]] = {
    "uniqueItems": (False,),
    "minContains": (0,),
    "not": (False,),
    "propertyNames": (True, {}, {"type": "string"}),
    "unevaluatedItems": (True, {}),
    "unevaluatedProperties": (True, {}),
    "dependencies": ({},),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
}
"""Keywords that the compiler refuses, with the values for which they have no effect."""
_FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown")
)
"""Formats of strings that the compiler knows. JSON Schema ignores all others."""
_OF_MEMBERS = (
    *("additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames", "minProperties"),
    *("dependencies", "dependentRequired", "dependentSchemas", "allOf", "anyOf", "oneOf", "not", "if"),
    *("enum", "const", "$ref", "$dynamicRef", "$recursiveRef"),
)
"""Keywords beside `properties` and `required` that may define members of an object."""
_HOME = ("$defs", "whole")  # path at which _moved_part() stores a schema, to compile a part of it
_REFERENCES = ("Pointer", "Resource", "circular")
_PATTERNS = ("regex", "regexes")


def tells_no_member(schema: Schema) -> bool:
    """Return True if no keyword of an object's schema defines or restricts members of the object."""
    none = schema.get("properties", {}) == {} and schema.get("required", []) == []
    return none and not any(keyword in schema for keyword in _OF_MEMBERS)


class Allowance:
    """Checks the schemas of one request, each one and the total of all, against limits."""

    def __init__(self) -> None:
        self._n_characters = 0
        self._n_states = 0

    def written(self, schema: Schema, param: str) -> str:
        """Check a schema and return it as JSON, without keywords that have no effect.

        Args:
            schema: The schema in the request.
            param: The schema's field in the request.

        Raises:
            FieldError: It is not a schema, no value fits it, or compiling it takes too much time or memory.
        """
        if depth(schema) > MAX_DEPTH:
            raise form_error(param, (), f"a schema must not be nested more than {MAX_DEPTH} levels deep")
        check_form(schema, param)
        schema = _without_idle(schema)
        if (place := endless_at(schema)) is not None:
            raise form_error(param, place, "no value fits: each would have another one in it without end")
        text = json.dumps(schema)
        if len(text) > MAX_CHARACTERS:
            raise form_error(
                param, (), f"a schema may have at most {MAX_CHARACTERS} characters, not {len(text)}"
            )
        if n_unfolded(schema, MAX_UNFOLDED) >= MAX_UNFOLDED:
            why = f"with its references written out a schema must have less than {MAX_UNFOLDED} parts"
            raise form_error(param, (), why)
        self._n_characters += len(text)
        if self._n_characters > MAX_TOGETHER:
            raise form_error(param, (), f"schemas may have at most {MAX_TOGETHER} characters together")
        self._n_states += _n_states(schema, param, MAX_MULTIPLE - self._n_states)
        return text


def _without_idle(schema: Schema) -> Schema:
    """Return a copy without the keywords that have no effect, some of which the compiler would refuse.

    Counts like 1.0 become integers, and bounds nearer to 0 than LEAST_BOUND become 0.
    """
    copy: Schema = json.loads(json.dumps(schema))
    for _, found in within(copy):
        one = cast(dict[str, Any], found) if isinstance(found, dict) else {}
        for keyword, value in list(one.items()):
            if _is_idle(keyword, value):
                del one[keyword]
            elif keyword in _BOUNDS and _is_number(value) and 0 < abs(value) < LEAST_BOUND:
                one[keyword] = 0
            elif keyword in COUNTS and isinstance(value, float):
                one[keyword] = int(value)
    return copy


def _is_idle(keyword: str, value: Any) -> bool:
    if is_absent(keyword, value):
        return True
    if keyword in _MOST_COUNTS:
        return _is_number(value) and value >= MAX_COUNT
    if keyword in _BOUNDS and _is_number(value):
        return value >= MAX_BOUND if keyword.lower().endswith("maximum") else value <= -MAX_BOUND
    if keyword == "format":
        return isinstance(value, str) and value not in _FORMATS
    return value in _IDLE.get(keyword, ())


def _n_states(schema: Schema, param: str, most: int) -> int:
    """Return the number of states that the automata for all multipleOf in a schema have, 0 without any.

    Raises:
        FieldError: The number is above `most`, or llguidance would allow values outside some bound.
    """
    multiple = 1
    left: list[tuple[Path, Schema]] = [((), schema)]
    while left:
        path, one = left.pop()
        multiple = math.lcm(multiple, _significant_digits(one.get("multipleOf")))
        if multiple > max(1, most):
            why = f"the multiples of all schemas must not be above {MAX_MULTIPLE} together"
            raise form_error(param, (*path, "multipleOf"), why)
        if (keyword := _leaky_bound(one)) is not None:
            why = "cannot be kept beside another bound before the next integer: use one that includes"
            raise form_error(param, (*path, keyword), why)
        left += [((*path, *steps), inner) for steps, inner in subschemas(one)]
    return multiple if multiple > 1 else 0


def depth(value: Any) -> int:
    """Return the nesting depth of objects and arrays, counted up to MAX_DEPTH + 1."""
    level: list[Any] = [value]
    for n_levels in range(MAX_DEPTH + 1):
        level = [inner for one in level for inner in _direct_items(one)]
        if not level:
            return n_levels
    return MAX_DEPTH + 1


def _direct_items(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(cast(dict[str, Any], value).values())
    return cast(list[Any], value) if isinstance(value, list) else []


def _significant_digits(number: Any) -> int:
    if not _is_number(number):
        return 1  # for the compiler to refuse
    digits = Decimal(str(number)).normalize().as_tuple().digits
    return int("".join(map(str, digits))) or 1


def _leaky_bound(schema: Schema) -> str | None:
    """Return the keyword of an exclusive bound that llguidance would treat as inclusive, None without one.

    llguidance does so if the bound is an integer, and the other bound is farther from 0, but by less than 1.
    For example, it would allow 0 for 0 < x < 0.5.
    """
    pairs = [
        (low, high)
        for low in _stricter_bounds(schema, "Minimum")
        for high in _stricter_bounds(schema, "Maximum")
    ]
    if "exclusiveMinimum" in schema and any(low == int(low) >= 0 and low < n < low + 1 for low, n in pairs):
        return "exclusiveMinimum"
    if "exclusiveMaximum" in schema and any(
        high == int(high) < 0 and high - 1 < n < high for n, high in pairs
    ):
        return "exclusiveMaximum"
    return None


def _stricter_bounds(schema: Schema, which: Literal["Minimum", "Maximum"]) -> list[float]:
    values = (schema.get(which.lower()), schema.get(f"exclusive{which}"))
    return [one for one in values if _is_number(one)]


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def blame(schema: Schema, fault: Fault) -> tuple[Path, str]:
    """Return the path of a schema's fault, and the message about it.

    The path leads to the innermost part that has the same fault when it is compiled alone. If the message
    names a keyword of this part, the path leads to the keyword. At most MAX_BLAME characters are compiled.

    Args:
        schema: A schema with a fault.
        fault: Compiles a schema; returns the message about its fault, None without one.
    """
    whole = _moved_copy(schema)
    at: Path = ()
    first = fault(_moved_part(whole, at))
    if first is None:  # the fault does not show in the moved copy
        return at, fault(schema) or ""
    n_whole = len(json.dumps(schema))
    left = MAX_BLAME

    def has_it_too(part: tuple[Path, Schema]) -> bool:
        nonlocal left
        text = json.dumps(part[1])
        left -= TRY + (n_whole if '"$ref"' in text else len(text))
        return left >= 0 and fault(_moved_part(whole, (*at, *part[0]))) == first

    here = schema
    while inner := next(filter(has_it_too, subschemas(here)), None):
        at, here = (*at, *inner[0]), inner[1]
    keyword = _keyword_at_fault(first, here)
    return (at if keyword is None else (*at, keyword)), first.replace("/".join(("", *_HOME)), "")


def _moved_part(whole: Schema, path: Path) -> Schema:
    """Return a schema that refers to the part of `whole` at this path, with `whole` stored at _HOME."""
    home, name = _HOME
    return {"$ref": f"#{_json_pointer((*_HOME, *path))}", home: {name: whole}}


def _json_pointer(path: Path) -> str:
    """Return a path as a JSON pointer in URI fragment notation."""
    return "".join("/" + quote(str(step).replace("~", "~0").replace("/", "~1"), safe="$") for step in path)


def _moved_copy(schema: Schema) -> Schema:
    """Return a copy whose references to its own parts are valid once _moved_part() has stored it at _HOME."""
    moved: Schema = json.loads(json.dumps(schema))
    todo = [cast(dict[str, Any], moved)]
    while todo:
        one = todo.pop()
        target = one.get("$ref")
        if isinstance(target, str) and (target == "#" or target.startswith("#/")):
            one["$ref"] = f"#{_json_pointer(_HOME)}{target[1:]}"
        todo += [cast(dict[str, Any], inner) for _, inner in subschemas(one)]
    return moved


def _keyword_at_fault(fault: str, schema: Schema) -> str | None:
    for word in re.findall(r"[$\w]+", fault):
        if word in _REFERENCES and "$ref" in schema:
            return "$ref"
        if word in _PATTERNS and "pattern" in schema:
            return "pattern"
        if word in schema:
            return word
    return None
