"""Count the parts of a JSON schema after a compiler has expanded its references. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias, cast

from server.grammar.schema_form import Schema, referred, subschemas

_IN_PLACE = ("allOf", "anyOf", "oneOf")
_NEUTRAL = frozenset(
    ("title", "description", "default", "examples", "deprecated", "$comment", "$defs", "definitions")
)
_Key: TypeAlias = tuple[int, bool]


def n_unfolded(root: Schema, most: int) -> int:
    """Return how many schemas `root` contains once its references are expanded. Counts up to about `most`.

    As in the compiler, a reference is expanded if it applies together with another schema. A reference to a
    schema that contains the reference counts as one schema, because the compiler refuses it.
    """
    sizes: dict[_Key, int] = {}
    todo: list[tuple[Schema, bool, bool]] = [(root, False, False)]  # (schema, met, parts counted)
    while todo:
        one, met, known = todo.pop()
        parts = list(_parts_of(one, root, met=met))
        if known:
            total = sum(sizes[id(part), with_it] for part, with_it in parts)
            sizes[id(one), met] = min(1 + total, most)
        elif (id(one), met) not in sizes:
            sizes[id(one), met] = 1  # counts as one within itself
            todo.append((one, met, True))
            todo += [(part, with_it, False) for part, with_it in parts]
    return sizes[id(root), False]


def _parts_of(one: Schema, root: Schema, *, met: bool) -> Iterator[tuple[Schema, bool]]:
    """Yield each schema within this schema, and True if it applies to a value together with other schemas.

    Args:
        one: The schema.
        root: The whole schema, which has the definitions of references.
        met: True if this schema applies together with others.
    """
    n_limits = len(one.keys() - _NEUTRAL)
    together = cast(list[Any], one.get("allOf", []))
    among = any(other != together[0] for other in together)  # the same schema twice counts as one
    for steps, inner in subschemas(one):
        with_it = met or n_limits > 1 or (steps[0] == "allOf" and among)
        yield inner, steps[0] in _IN_PLACE and with_it
    if met or n_limits > 1:
        yield from ((meant, True) for _, meant in referred(one, root))
