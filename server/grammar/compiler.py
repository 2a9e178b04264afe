"""What requests bring, compiled, and kept for the next request that brings the same."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Literal, TypeAlias

from server.grammar.schema import Schema, written
from server.llama.backend import Vocabulary
from server.sampling.constraint import Constraint

Start: TypeAlias = Callable[[], Constraint]
"""Begins a text."""

KEPT = 64
_OBJECT = '{"type": "object"}'


class Compiler:
    """Of one vocabulary. Safe from any thread. Compiling takes milliseconds, at worst some tenths of a
    second. Everything raises InvalidRequestError that names the place; param is the field of the request."""

    def __init__(self, vocabulary: Vocabulary, *, kept: int = KEPT) -> None:
        """kept: those least recently asked for are forgotten first."""
        self._vocabulary = vocabulary
        self._compiled = functools.lru_cache(maxsize=kept)(self._compile)

    def gbnf(self, text: str) -> Start:
        """A grammar in llama.cpp's notation."""
        return self._compiled("gbnf", text, "grammar")

    def json_schema(self, schema: Schema, param: str = "json_schema") -> Start:
        """JSON that a schema describes."""
        return self._compiled("schema", written(schema, param), param)

    def json_object(self, param: str = "response_format") -> Start:
        """Any JSON object."""
        return self._compiled("schema", _OBJECT, param)

    def lark(self, text: str, param: str) -> Start:
        """Rules in llguidance's dialect of Lark, without its options; they begin with `start`."""
        return self._compiled("lark", text, param)

    def _compile(self, kind: Literal["gbnf", "schema", "lark"], text: str, param: str) -> Start:
        from server.grammar import constraint  # llguidance loads when somebody needs it

        match kind:
            case "gbnf":
                return constraint.compile_gbnf(self._vocabulary, text)
            case "schema":
                return constraint.compile_json_schema(self._vocabulary, json.loads(text), param)
            case "lark":
                return constraint.compile_lark(self._vocabulary, text, param)
