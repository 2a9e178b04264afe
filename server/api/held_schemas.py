"""Replace schemas that no grammar can hold by ones that calls can be held to."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, TypeVar

from server.api.tools import Calling, CustomFunction, FunctionDefinition
from server.errors import InvalidRequestError
from server.grammar.compiler import Compiler
from server.grammar.definition import check_definition, custom_parameters, input_of_custom
from server.grammar.json_schema import Allowance, tells_no_member
from server.grammar.relaxing import ANY_OBJECT
from server.grammar.schema_form import Schema, check_form

Key = TypeVar("Key")
Value = TypeVar("Value")

logger = logging.getLogger("duo.api")

NO_MEMBERS: Schema = {"properties": {}, "additionalProperties": False}
MAX_KNOWN = 1024
"""Maximum schemas remembered not to compile.

Agents send the same schemas in every turn, and finding out which of 100 fails takes a second.
"""
MOST_RULES = 32
"""Maximum grammars whose rules are kept, of up to some hundred kilobytes each.

To write those of 30 tools takes 40 ms in each turn. Half: with 17 agents at a time each writes them again.
"""


class HeldSchemas:
    """Finds the schemas that a request's calls are held to. Safe on any thread."""

    def __init__(self, grammars: Compiler) -> None:
        self.grammars = grammars
        self.rules: dict[bytes, str] = {}  # of grammars, by a digest of what they are for; the oldest first
        self._instead: dict[bytes, Schema] = {}  # by a digest of the schema, oldest first
        self._said: dict[tuple[str, str], None] = {}  # of a function, and what is not held; the oldest first
        self._lock = threading.Lock()

    def keep_rules(self, key: bytes, rules: str) -> None:
        """Remember the rules of a grammar that compiles, "" for none, for requests with the same tools."""
        with self._lock:
            _keep_bounded(self.rules, key, rules, MOST_RULES)

    def arguments(self, calls: Calling) -> dict[str, Schema]:
        """Return the schema of arguments by function; a replacement where one is known not to compile.

        Raises:
            InvalidRequestError: A schema has no valid form, or one of a strict function is too large.
        """
        allowance, found = Allowance(), dict[str, Schema]()
        for i, function in calls.functions:
            check_form(function.schema_of_arguments, place(i))
            schema = _argument_schema(function, i)
            if function.strict:
                with _telling_of(function):
                    found[function.name] = _without_annotations(allowance, schema, i)
            else:
                found[function.name] = self._allowed_part(allowance, function, schema, i)
        return found

    def learn(
        self, calls: Calling, schemas: Mapping[str, Schema], rules_of: Callable[[str, Schema], str]
    ) -> None:
        """Find out which of these schemas do not compile, each by itself.

        Args:
            calls: Of the request.
            schemas: Of arguments, by function.
            rules_of: Returns the rules of a call; parts of a schema that JSON need not have may fail there.

        Raises:
            InvalidRequestError: One of a strict function does not.
        """
        for i, function in calls.functions:
            schema = schemas[function.name]
            try:
                with _telling_of(function):
                    self.grammars.check(schema, place(i))
                    self.grammars.check_rules(rules_of(function.name, schema), place(i))
            except InvalidRequestError as error:
                if function.strict:
                    raise
                self._compiling_part(function, _argument_schema(function, i), i, otherwise=error.message)

    def _allowed_part(
        self, allowance: Allowance, function: FunctionDefinition, schema: Schema, i: int
    ) -> Schema:
        """Return as much of a schema as compiles and as the request's other schemas leave room for."""
        schema = self._instead.get(digest(schema), schema)
        try:
            return _without_annotations(allowance, schema, i)
        except InvalidRequestError:
            schema = self._compiling_part(function, schema, i)
        try:
            return _without_annotations(allowance, schema, i)
        except InvalidRequestError as error:
            self._log_once(function, f"anything: {error.message}")
            return ANY_OBJECT

    def _compiling_part(
        self, function: FunctionDefinition, schema: Schema, i: int, otherwise: str = ""
    ) -> Schema:
        """Return as much of a schema as compiles, remember it for next time and log once what is not held.

        Args:
            function: The function.
            schema: Of its arguments.
            i: Index of its tool.
            otherwise: Why any object stands for a schema that compiles; "": the schema itself does.
        """
        held, left_out = self.grammars.held(schema, place(i))
        if not left_out and otherwise:
            held, left_out = ANY_OBJECT, [""]
        if left_out:
            with self._lock:
                _keep_bounded(self._instead, digest(schema), held)
            self._log_once(function, ", ".join(left_out) if all(left_out) else f"anything ({otherwise})")
        return held

    def _log_once(self, function: FunctionDefinition, what: str) -> None:
        with self._lock:
            said = (function.name, what) in self._said
            _keep_bounded(self._said, (function.name, what), None)
        if not said:
            logger.warning(
                "no grammar can hold calls of the tool %s to %s of its schema: they may violate it",
                function.name,
                what,
            )


def place(tool: int) -> str:
    """Return the name of the request's field that holds a tool's schema."""
    return f"tools.{tool}.function.parameters"


@contextmanager
def _telling_of(function: FunctionDefinition) -> Generator[None]:
    """Raise errors with the name of the function."""
    try:
        yield
    except InvalidRequestError as error:
        error.message += f"; {function.name} is strict"
        raise


def digest(given: Any) -> bytes:
    """Return what tells one JSON value from another."""
    return sha256(json.dumps(given).encode()).digest()


def _keep_bounded(known: dict[Key, Value], key: Key, value: Value, most: int = MAX_KNOWN) -> None:
    known.pop(key, None)
    known[key] = value
    while len(known) > most:
        del known[next(iter(known))]


def _without_annotations(allowance: Allowance, schema: Schema, tool: int) -> Schema:
    """Return a schema without keywords that change nothing.

    Raises:
        InvalidRequestError: The schema is too large.
    """
    return schema if input_of_custom(schema) else json.loads(allowance.written(schema, place(tool)))


def _argument_schema(function: FunctionDefinition, tool: int) -> Schema:
    """Return the schema that a function's arguments are held to.

    A function without parameters takes no arguments, as OpenAI says.

    Raises:
        InvalidRequestError: A custom tool's grammar is not valid.
    """
    if isinstance(function, CustomFunction) and (held := function.input_format) is not None:
        check_definition(held.syntax, held.definition, f"tools.{tool}.custom.format.grammar.definition")
        return custom_parameters(held.syntax, held.definition)
    schema: dict[str, Any] = {**function.schema_of_arguments, **ANY_OBJECT}
    return {**schema, **NO_MEMBERS} if tells_no_member(schema) else schema
