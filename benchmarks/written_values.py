"""Arguments of many types: a schema, and values that it allows."""

from __future__ import annotations

from typing import Any

_TEXT: dict[str, Any] = {"type": "string"}
_PAIR = {"type": "object", "properties": {"a": _TEXT, "b": {"type": "integer"}}}
VALUES: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "text": (
        _TEXT,
        [
            "",
            " lead and trail ",
            "a\nb\n\nc",
            "a\n",
            "\na",
            "x </tool_call> y",
            "<think>x</think>",
            '{"a": [1, 2]}',
            '[1, "two"]',
            "17",
            "true",
            "null",
            "ü 😀 日本",
            "b\\s \"q\" 'p' `t`",
            "</parameter> <parameter=x>",
            'f(a=1, b="c")]',
            'def f():\n    return {"a": 1}  # ok\n',
            "a, b; c: d = e",
        ],
    ),
    "integer": ({"type": "integer"}, [-3, 12345678901234567890, 0]),
    "number": ({"type": "number"}, [-0.25, 1e-7, 1.5e22, 4]),
    "boolean": ({"type": "boolean"}, [False]),
    "text or null": ({"type": ["string", "null"]}, [None, "text"]),
    "union": ({"anyOf": [{"type": "integer"}, _TEXT]}, ["5a", 5]),
    "texts": ({"type": "array", "items": _TEXT}, [[], ["a, b", 'c "d"', ""]]),
    "numbers": ({"type": "array", "items": {"type": "number"}}, [[1, 2.5, -3]]),
    "booleans": ({"type": "array", "items": {"type": "boolean"}}, [[True, False]]),
    "pairs": ({"type": "array", "items": _PAIR}, [[{"a": "x", "b": 1}, {"a": 'y "z"', "b": 2}]]),
    "lists": (
        {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
        [[[1, 2], [3]]],
    ),
    "object": ({"type": "object"}, [{}, {"k": {"l": [{"m": [True, None, "s"]}]}}]),
    "few": ({"enum": ["blue", "red one"]}, ["red one"]),
    "anything": ({}, ["free", {"x": 1}]),
}
