"""Write calls as the model does, for chat templates that do not show calls themselves. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from server.formats.description import SLOT, Calls
from server.formats.json_call import ARGUMENTS_KEYS, ID_KEYS

_KINDS = {
    "bool": "boolean",
    "int": "number",
    "float": "number",
    "str": "string",
    "list": "array",
    "dict": "object",
}
_MAYBE = re.compile(r"⟦([^⟧]*)⟧")


def written(calls: Sequence[Mapping[str, Any]], syntax: Calls) -> str:
    """Return the text of calls, given in OpenAI's shape, in a model's syntax.

    Arguments that are not a JSON object are copied unchanged.
    """
    each = [_fill_slots(syntax.call, _slot_texts(call, nth, syntax)) for nth, call in enumerate(calls)]
    if syntax.each:
        each = [syntax.open + one + syntax.close for one in each]
        return syntax.between.join(each)
    return (syntax.open + syntax.between.join(each) + syntax.close).replace("·", "")


def _slot_texts(call: Mapping[str, Any], nth: int, syntax: Calls) -> dict[str, str]:
    name, given = call["function"]["name"], call["function"]["arguments"]
    id = str(call.get("id") or "")
    found = {"name": name, "id": id, "nth": str(nth + 1)}
    found["named_id"] = id if re.fullmatch(r"(functions\.)?[\w.:/-]+:\d+", id) else f"functions.{name}:{nth}"
    return {**found, syntax.arguments: _written_arguments(name, given, id or str(nth), syntax)}


def _fill_slots(pattern: str, slots: Mapping[str, str]) -> str:
    """Fill a pattern's slots; omit optional text that contains an empty slot."""

    def kept(maybe: re.Match[str]) -> str:
        return maybe[1] if all(slots[slot] for slot in SLOT.findall(maybe[1])) else ""

    return SLOT.sub(lambda slot: slots[slot[1]], _MAYBE.sub(kept, pattern)).replace("·", "")


def _written_arguments(name: str, given: str, id: str, syntax: Calls) -> str:
    if syntax.arguments == "json":
        return given
    if syntax.arguments == "object":
        values = {**dict.fromkeys(ARGUMENTS_KEYS, given), **dict.fromkeys(ID_KEYS, json.dumps(id))}
        members = (f"{json.dumps(key)}: {values.get(key, json.dumps(name))}" for key in syntax.members)
        return "{" + ", ".join(members) + "}"
    members = _parsed_members(given)
    if members is None:
        return given
    match syntax.arguments:
        case "parameters":
            return "".join(_written_parameter(syntax.parameter, *member) for member in members.items())
        case "python":
            return ", ".join(f"{key}={_in_python(value)}" for key, value in members.items())
        case _:
            return in_gemma(members)


def _parsed_members(given: str) -> dict[str, Any] | None:
    try:
        found = json.loads(given)
    except (ValueError, RecursionError):
        return None
    return cast(dict[str, Any], found) if isinstance(found, dict) else None


def _written_parameter(pattern: str, key: str, value: Any) -> str:
    is_text = isinstance(value, str)
    text = value if is_text else json.dumps(value, ensure_ascii=False)
    kind = _KINDS.get(type(value).__name__, "null")
    slots = {"key": key, "string": "true" if is_text else "false", "type": kind}
    return _fill_slots(pattern, {**slots, **dict.fromkeys(("value", "cdata", "nested"), text)})


def _in_python(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def in_gemma(value: Any) -> str:
    """Return a JSON value in Gemma's own notation."""
    match value:
        case str():
            return f'<|"|>{value}<|"|>'
        case dict():
            members = cast(dict[str, Any], value).items()
            return "{" + ",".join(f"{key}:{in_gemma(one)}" for key, one in members) + "}"
        case list():
            return "[" + ",".join(map(in_gemma, cast(list[Any], value))) + "]"
        case _:
            return json.dumps(value)
