"""Find which types and values a JSON schema allows, following its references. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

Schema: TypeAlias = Mapping[str, Any]

STRING = frozenset({"string"})
ANNOTATIONS = frozenset({"title", "description", "default", "examples", "deprecated", "$comment"})
"""Keywords that do not restrict values."""
_DEFINITIONS = ("$defs", "definitions")
_CHOICES = ("anyOf", "oneOf")
_NUMBERS = frozenset({"integer", "number"})
_MOST_ALTERNATIVES = 256
"""Maximum steps for splitting a schema; nested choices could otherwise take forever."""
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


def resolved(schema: Any, root: Schema) -> Schema:
    """Return `schema`, a part of `root`, with its references resolved, and with the definitions of `root`."""
    return {**_follow_references(schema, frozenset(), root)[0], **definitions(root)}


def definitions(root: Schema) -> Schema:
    return {key: root[key] for key in _DEFINITIONS if key in root}


def limited(schema: Schema, types: Sequence[str]) -> Schema:
    """Return the schema restricted to these types."""
    return _intersection(schema, {"type": list(types)})


def alternatives(schema: Schema) -> Sequence[Schema]:
    """Split a schema into alternatives: a value fits the schema if it fits one of them.

    Each alternative has `enum` or a single `type`, if the schema restricts values or types.
    """
    found = list[Schema]()
    pending: list[tuple[Any, frozenset[str]]] = [(schema, frozenset())]
    for _ in range(_MOST_ALTERNATIVES):
        if not pending:
            break
        plain, seen = _follow_references(*pending.pop(), schema)
        choice = next((key for key in _CHOICES if isinstance(plain.get(key), list)), None)
        if str(plain.get("$ref")) in seen:  # a schema that refers to itself adds nothing
            continue
        if choice is None or "enum" in plain or "const" in plain:
            found += _of_one_type(plain)
            continue
        rest = {key: value for key, value in plain.items() if key != choice}
        pending += [(_intersection(rest, _as_mapping(one)), seen) for one in reversed(plain[choice])]
    shared = definitions(schema)
    return [{**one, **shared} for one in found] if found and not pending else [schema]


def types_of(schema: Schema) -> frozenset[str] | None:
    """Return the JSON types that a schema allows; None if it allows any type."""
    found = frozenset[str]()
    for alternative in alternatives(schema):
        if "enum" in alternative:
            found |= {_type_name(value) for value in alternative["enum"]}
        elif "type" in alternative:
            found |= frozenset(_type_names(alternative))
        else:
            return None
    return found


def only_values(schema: Schema) -> Sequence[Any]:
    """Return the values that a schema enumerates; () if it allows other values too."""
    each = alternatives(schema)
    return (
        [value for alternative in each for value in alternative["enum"]]
        if all("enum" in alternative for alternative in each)
        else ()
    )


def fits(value: Any, types: frozenset[str] | None) -> bool:
    """Return True if the value has one of these JSON types; None means any type."""
    kind = _type_name(value)
    return types is None or kind in types or (kind == "integer" and "number" in types)


def _type_name(value: Any) -> str:
    return _TYPES.get(cast(Any, type(value)), "null")


def _type_names(schema: Schema) -> list[str]:
    """Return the schema's `type` as a list."""
    named = schema["type"]
    listed = cast(list[Any], named) if isinstance(named, list) else [named]
    return [one for one in listed if isinstance(one, str)]


def _follow_references(schema: Any, seen: frozenset[str], root: Schema) -> tuple[Schema, frozenset[str]]:
    """Follow `$ref`, and choices that offer only one schema.

    Returns:
        The schema found, and all references followed so far, including `seen`.
    """
    found: Schema = {key: value for key, value in _as_mapping(schema).items() if key not in _DEFINITIONS}
    while True:
        reference = str(found.get("$ref", ""))
        target = _definition_of(reference, root)
        if target is not None and reference not in seen:
            seen |= {reference}
            key, inner = "$ref", target
        else:
            single = (one for one in ("allOf", *_CHOICES) if _is_single(found.get(one)))
            if (key := next(single, "")) == "":
                return found, seen
            inner = _as_mapping(found[key][0])
        found = _intersection({one: value for one, value in found.items() if one != key}, inner)


def _is_single(choices: Any) -> bool:
    return isinstance(choices, list) and len(cast(list[Any], choices)) == 1


def _as_mapping(found: Any) -> Schema:
    """Return a schema as a mapping: {} for `true`, which allows anything."""
    return cast(Schema, found) if isinstance(found, Mapping) else {}


def _definition_of(reference: str, root: Schema) -> Schema | None:
    """Return the definition that a reference names, None for any other reference."""
    start, *steps = reference.split("/")
    if start != "#" or steps[:1] not in (["$defs"], ["definitions"]):
        return None
    found: Any = root
    for step in steps:
        found = cast(Schema, found).get(step) if isinstance(found, Mapping) else None
    return cast(Schema, found) if isinstance(found, Mapping) else None


def _intersection(one: Schema, other: Schema) -> Schema:
    """Return a schema that requires both schemas; conflicting keywords are put into `allOf`."""
    joined = {**other, **one}
    if "type" in one and "type" in other:
        joined["type"] = _common_types(_type_names(one), _type_names(other))
    clash = (key for key in one if key in other and key not in ANNOTATIONS and key != "type")
    if all(one[key] == other[key] for key in clash):
        return joined
    top = {key: joined[key] for key in ("type", "enum", "const") if key in joined}
    return {**top, "allOf": [one, other]}


def _common_types(one: Sequence[str], other: Sequence[str]) -> list[str]:
    """Return the types that both lists allow; an integer counts as a number, too."""
    common = {*one} & {*other}
    if "number" not in common and not _NUMBERS.isdisjoint(one) and not _NUMBERS.isdisjoint(other):
        common.add("integer")
    return sorted(common)


def _of_one_type(schema: Schema) -> list[Schema]:
    """Split `schema` into one schema per type. A list of values gives at most one schema, with `enum`."""
    values = schema["enum"] if "enum" in schema else [schema["const"]] if "const" in schema else None
    rest = {key: value for key, value in schema.items() if key not in ("enum", "const")}
    types = _type_names(schema) if "type" in schema else None
    if isinstance(values, list):
        known = frozenset(types) if types is not None else None
        kept = [value for value in cast(list[Any], values) if fits(value, known)]
        return [{**rest, "enum": kept}] if kept else []
    if types is None:
        return [rest]
    return [{"enum": [None]} if one == "null" else {**rest, "type": one} for one in types]
