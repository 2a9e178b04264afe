"""Write a schema for llguidance so that negated character classes in its patterns are exact. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, cast

from server.grammar.schema_form import Schema, within

_NEGATED_CLASS = re.compile(
    r"(\\P\{[^}]*(?:\}|\Z)|\[\^\]?(?:\\.|\[(?:\\.|[^\]\\])*(?:\]|\Z)|[^\]\\\[])*(?:\]|\Z))|\\.", re.DOTALL
)
"""Matches a negated character class, including nested classes, or an escaped character.

An unclosed class extends to the end of the text, so the search takes linear time.
"""


def json_expression(schema: Schema, options: Mapping[str, Any]) -> str:
    """Return an expression of llguidance's Lark that matches the JSON texts that fit a schema.

    options: llguidance's options by key, such as those for white space.
    """
    written = json.dumps({**schema, **options})
    if "[^" in written or r"\\P" in written:
        written = json.dumps(_with_exact_classes(json.loads(written)))
    return f"%json {written}"


def _with_exact_classes(schema: dict[str, Any]) -> dict[str, Any]:
    for _, found in within(schema):
        one = cast(dict[str, Any], found) if isinstance(found, dict) else {}
        if isinstance(one.get("pattern"), str):
            one["pattern"] = _without_nul(one["pattern"])
        if isinstance(one.get("patternProperties"), dict):
            named = cast(dict[str, Any], one["patternProperties"])
            one["patternProperties"] = {_without_nul(name): value for name, value in named.items()}
    return schema


def _without_nul(pattern: str) -> str:
    r"""Return the pattern with NUL excluded from its negated classes; replies never contain NUL.

    If a class contains all control characters, llguidance 1.9.1 allows \" and \\ in its place. So `[^"]`
    would allow quotation marks.
    """
    return _NEGATED_CLASS.sub(lambda found: f"[{found[1]}--\\x00]" if found[1] else found[0], pattern)
