"""Replace schemas that do not compile to a grammar by weaker ones that do."""

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
"""Maximum number of remembered schemas that do not compile.

Agents send equal schemas in every turn, and finding out which of 100 schemas fails takes a second.
"""
MOST_RULES = 32
"""Maximum grammars whose rules are kept, each up to some hundred kilobytes.

Writing the rules of 30 tools takes 40 ms. Half: with 17 agents at a time, every turn writes its rules again.
"""


class EnforceableSchemas:
    """Finds schemas that a grammar of a request's calls can enforce. Safe on any thread."""

    def __init__(self, grammars: Compiler) -> None:
        self.grammars = grammars
        self.rules: dict[bytes, str] = {}  # rules of grammars, by digest of the tools; oldest first
        self._instead: dict[bytes, Schema] = {}  # replacements, by digest of the schema; oldest first
        self._said: dict[tuple[str, str], None] = {}  # logged (function, unenforced part); oldest first
        self._lock = threading.Lock()

    def keep_rules(self, key: bytes, rules: str) -> None:
        """Remember rules that compile, by a digest of the tools; "" means that no grammar is possible."""
        with self._lock:
            _keep_bounded(self.rules, key, rules, MOST_RULES)

    def arguments(self, calls: Calling) -> dict[str, Schema]:
        """Return schemas of arguments by function name, restricted to what a grammar can enforce.

        Parts that are known not to compile, or that are too large, are left out. Schemas of strict functions
        are not restricted.

        Raises:
            InvalidRequestError: A schema is malformed, or a strict function's schema is too large.
        """
        allowance, found = Allowance(), dict[str, Schema]()
        for i, function in calls.functions:
            check_form(function.schema_of_arguments, place(i))
            schema = _argument_schema(function, i)
            if function.strict:
                with _naming_strict(function):
                    found[function.name] = _without_annotations(allowance, schema, i)
            else:
                found[function.name] = self._allowed_part(allowance, function, schema, i)
        return found

    def learn(
        self, calls: Calling, schemas: Mapping[str, Schema], rules_of: Callable[[str, Schema], str]
    ) -> None:
        """Find out which of these schemas do not compile, and remember replacements for them.

        Args:
            calls: The request's tools that may be called.
            schemas: Schemas of arguments, by function name.
            rules_of: Returns the rules of a call, given function name and schema. These rules may fail to
                compile even if the schema by itself compiles.

        Raises:
            InvalidRequestError: A strict function's schema does not compile.
        """
        for i, function in calls.functions:
            schema = schemas[function.name]
            try:
                with _naming_strict(function):
                    self.grammars.check(schema, place(i))
                    self.grammars.check_rules(rules_of(function.name, schema), place(i))
            except InvalidRequestError as error:
                if function.strict:
                    raise
                self._compiling_part(function, _argument_schema(function, i), i, otherwise=error.message)

    def _allowed_part(
        self, allowance: Allowance, function: FunctionDefinition, schema: Schema, i: int
    ) -> Schema:
        """Return the part of a schema that compiles and whose size `allowance` still permits.

        Args:
            allowance: The size that is left for the request's schemas; it is reduced.
            function: The function, for the log.
            schema: The schema of its arguments.
            i: Index of its tool in the request.
        """
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
        """Return the part of a schema that compiles. If parts are left out, remember the result and log once.

        Args:
            function: The function.
            schema: The schema of its arguments.
            i: Index of its tool in the request.
            otherwise: Reason to replace the schema by ANY_OBJECT although it compiles; "": no reason.
        """
        held, left_out = self.grammars.enforceable(schema, place(i))
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
                "no grammar can enforce for calls of the tool %s: %s of its schema. Calls may violate it",
                function.name,
                what,
            )


def place(tool: int) -> str:
    """Return the name of the request's field with the schema of a tool, given the tool's index."""
    return f"tools.{tool}.function.parameters"


@contextmanager
def _naming_strict(function: FunctionDefinition) -> Generator[None]:
    """Append "<function> is strict" to the message of an InvalidRequestError raised in the with block."""
    try:
        yield
    except InvalidRequestError as error:
        error.message += f"; {function.name} is strict"
        raise


def digest(given: Any) -> bytes:
    """Return a digest of a JSON value."""
    return sha256(json.dumps(given).encode()).digest()


def _keep_bounded(known: dict[Key, Value], key: Key, value: Value, most: int = MAX_KNOWN) -> None:
    known.pop(key, None)
    known[key] = value
    while len(known) > most:
        del known[next(iter(known))]


def _without_annotations(allowance: Allowance, schema: Schema, tool: int) -> Schema:
    """Return a schema without annotations, and subtract its size from the allowance.

    tool: Index of the tool in the request.

    Raises:
        InvalidRequestError: The schema is too large.
    """
    return schema if input_of_custom(schema) else json.loads(allowance.written(schema, place(tool)))


def _argument_schema(function: FunctionDefinition, tool: int) -> Schema:
    """Return the schema that a function's arguments must fit.

    A function without parameters takes no arguments, as in OpenAI's API. tool: Index of its tool.

    Raises:
        InvalidRequestError: A custom tool's grammar is not valid.
    """
    if isinstance(function, CustomFunction) and (held := function.input_format) is not None:
        check_definition(held.syntax, held.definition, f"tools.{tool}.custom.format.grammar.definition")
        return custom_parameters(held.syntax, held.definition)
    schema: dict[str, Any] = {**function.schema_of_arguments, **ANY_OBJECT}
    return {**schema, **NO_MEMBERS} if tells_no_member(schema) else schema
