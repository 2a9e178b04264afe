"""Find JSON schemas that no finite value fits, because each value would have to contain another. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from server.grammar.schema_form import Path, Schema, referred, within

_COMPOUND = frozenset({"object", "array"})


def endless_at(root: Schema) -> Path | None:
    """Return the path at which a schema refers to itself without end; None if some value fits the schema."""
    places = [(path, cast(Schema, one)) for path, one in within(root) if isinstance(one, dict)]
    ending = set[int]()  # ids of schemas that some value fits
    n_known = -1
    while n_known < len(ending):
        n_known = len(ending)
        for _, one in places:
            if id(one) not in ending and _has_end(one, root, ending):
                ending.add(id(one))
    if id(root) in ending:
        return None
    found = ((*path, "$ref") for path, one in places if id(one) not in ending and "$ref" in one)
    return next(found, ())


def _has_end(one: Schema, root: Schema, ending: set[int]) -> bool:
    """Return True if some value fits the schema `one`, a part of `root`.

    ending: id() of each part of `root` that some value is already known to fit.
    """

    def ends(inner: Any) -> bool:
        return not isinstance(inner, dict) or id(cast(Any, inner)) in ending

    if "enum" in one or "const" in one:
        return True
    if not all(ends(meant) for _, meant in referred(one, root)):
        return False
    if not all(map(ends, _list_at(one, "allOf"))):
        return False
    for key in ("anyOf", "oneOf"):
        options = _list_at(one, key)
        if options and not any(map(ends, options)):
            return False
    named: Any = one.get("type")
    types = {named} if isinstance(named, str) else {*cast(Sequence[str], named or ())}
    if not types or types - _COMPOUND:
        return True
    properties = cast(Mapping[str, Any], one.get("properties") or {})
    needed = (properties.get(key) for key in cast(Sequence[str], one.get("required") or ()))
    if "object" in types and all(map(ends, needed)):
        return True
    n_least = int(one.get("minItems") or 0)
    first = _list_at(one, "prefixItems")[:n_least]
    rest = [one.get("items")] if n_least > len(first) else []
    return "array" in types and all(map(ends, [*first, *rest]))


def _list_at(schema: Schema, key: str) -> list[Any]:
    found = schema.get(key)
    return cast(list[Any], found) if isinstance(found, list) else []
