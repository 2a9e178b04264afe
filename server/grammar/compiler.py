"""Compile the grammars of requests, and keep them for later requests with the same grammar."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from server.errors import InvalidRequestError
from server.grammar.deep_stack import on_deep_stack
from server.grammar.json_schema import Allowance
from server.grammar.relaxing import ANY_OBJECT, relaxed
from server.grammar.schema_form import Schema, check_form
from server.llama.backend import Vocabulary
from server.sampling.constraint import Constraint

if TYPE_CHECKING:
    from server.grammar.grammar_constraint import CompiledGrammar

Start: TypeAlias = Callable[[], Constraint]
"""A function that begins a text under a grammar: each call returns the Constraint of a new text."""

Kind: TypeAlias = Literal["gbnf", "schema", "lark"]

KEPT_BYTES = 256 << 20  # n_bytes of all kept grammars: hundreds of usual schemas, or four with 128 tools each


class Compiler:
    """Compiles grammars for one vocabulary, usually in milliseconds, at worst in seconds. Thread-safe.

    Every method raises InvalidRequestError if a grammar cannot be used; the message names the position of the
    fault. `param` is the field of the request that has the grammar.
    """

    def __init__(self, vocabulary: Vocabulary, *, kept_bytes: int = KEPT_BYTES) -> None:
        """Begin without grammars. Beyond `kept_bytes` of memory, drop the least recently used grammars."""
        self._vocabulary = vocabulary
        self._kept_bytes = kept_bytes
        self._lock = threading.Lock()
        self._kept: dict[tuple[Kind, str, str], CompiledGrammar] = {}  # least recently used first

    def gbnf(self, text: str) -> Start:
        """Compile a grammar in llama.cpp's notation."""
        return self._compiled_once("gbnf", text, "grammar")

    def json_schema(self, schema: Schema, param: str = "json_schema") -> Start:
        """Compile a grammar of the JSON texts that a schema describes."""
        return self._compiled_once("schema", Allowance().written(schema, param), param)

    def json_object(self, param: str = "response_format") -> Start:
        """Compile a grammar of all JSON objects."""
        return self.json_schema({"type": "object"}, param)

    def lark(self, text: str, param: str, schemas: Sequence[tuple[str, Schema]] = ()) -> Start:
        """Compile rules in llguidance's dialect of Lark.

        Args:
            text: The rules, without %llguidance options. The root is `start`.
            param: The field of the request.
            schemas: (field of the request, schema) of each schema in the rules. If the rules do not compile,
                each schema is compiled alone, so that the error can name the field.
        """
        try:
            return self._compiled_once("lark", text, param)
        except InvalidRequestError:
            for place, schema in schemas:
                self.check(schema, place)
            raise

    def check(self, schema: Schema, param: str) -> None:
        """Compile a schema by itself, only to find errors."""
        self._compile_deep("schema", Allowance().written(schema, param), param)

    def check_rules(self, text: str, param: str) -> None:
        """Compile rules in llguidance's Lark, only to find errors."""
        self._compile_deep("lark", text, param)

    def enforceable(self, schema: Schema, param: str) -> tuple[Schema, list[str]]:
        """Return the part of a schema that a grammar can enforce, and the paths of the omitted parts.

        If nothing can be enforced, the returned part allows any object, and the only path is "".

        Args:
            schema: The schema in the request.
            param: The schema's field in the request, which errors name.

        Raises:
            InvalidRequestError: A keyword of the schema has a value of an invalid form.
        """
        from server.grammar.grammar_constraint import fault_of

        check_form(schema, param)
        found = on_deep_stack(lambda: relaxed(schema, fault_of))
        try:
            self.check(found[0], param)
        except InvalidRequestError:  # for example, it is too large, which shows only when it is compiled
            return ANY_OBJECT, [""]
        return found

    def _compiled_once(self, kind: Kind, text: str, param: str) -> Start:
        key = kind, text, param
        with self._lock:
            found = self._kept.pop(key, None)
            if found is not None and not found.worn:
                self._kept[key] = found
                return found
        found = self._compile_deep(kind, text, param)
        with self._lock:
            self._kept[key] = found
            self._forget_oldest()
        return found

    def _forget_oldest(self) -> None:
        """Fill kept_bytes with the most recently used grammars; drop grammars that do not fit."""
        left = self._kept_bytes
        for key, grammar in reversed(list(self._kept.items())):
            if grammar.n_bytes > left:
                del self._kept[key]
            else:
                left -= grammar.n_bytes

    def _compile_deep(self, kind: Kind, text: str, param: str) -> CompiledGrammar:
        return on_deep_stack(lambda: self._compile_here(kind, text, param))

    def _compile_here(self, kind: Kind, text: str, param: str) -> CompiledGrammar:
        from server.grammar import grammar_constraint as constraint  # loads llguidance on first use

        match kind:
            case "gbnf":
                return constraint.compile_gbnf(self._vocabulary, text)
            case "schema":
                return constraint.compile_json_schema(self._vocabulary, json.loads(text), param)
            case "lark":
                return constraint.compile_lark(self._vocabulary, text, param)


def prepare(vocabulary: Vocabulary) -> None:
    """Prepare a vocabulary for grammars, so that the first one does not wait (0.5 s with 50,000 tokens)."""
    from server.grammar import grammar_constraint as constraint

    constraint.tokenizer(vocabulary)
