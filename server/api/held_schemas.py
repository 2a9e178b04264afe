"""What calls are held to in place of schemas that no grammar can hold."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from server.api.tools import Calling, CustomFunction, FunctionDefinition
from server.errors import InvalidRequestError
from server.grammar.compiler import Compiler
from server.grammar.definition import check_definition, custom_parameters
from server.grammar.json_schema import Allowance, tells_no_member
from server.grammar.schema_form import Schema, check_form

logger = logging.getLogger("duo.api")

ANY_OBJECT: Schema = {"type": "object"}
NO_MEMBERS: Schema = {"properties": {}, "additionalProperties": False}
MAX_KNOWN = 1024
"""Schemas that are remembered not to compile: agents send the same ones in every turn, and to find out which
of 100 it is takes a second."""


class HeldSchemas:
    """Finds what to hold a request's calls to. Safe on any thread."""

    def __init__(self, grammars: Compiler) -> None:
        self.grammars = grammars
        self._instead: dict[bytes, Schema] = {}  # by a digest of the schema; the oldest first
        self._lock = threading.Lock()

    def arguments(self, calls: Calling) -> dict[str, Schema]:
        """Return schemas of arguments by function, with those in place of schemas known not to compile.

        Raises:
            InvalidRequestError: A schema has no valid form, or one of a strict function is too large.
        """
        allowance, found = Allowance(), dict[str, Schema]()
        for i, function in calls.functions:
            check_form(function.schema_of_arguments, place(i))
            try:
                schema = _arguments(function, i, allowance)
            except InvalidRequestError as error:
                if function.strict:
                    raise
                schema = ANY_OBJECT
                self._remember(function, schema, error)
            found[function.name] = schema if function.strict else self._known(schema)
        return found

    def learn(self, calls: Calling, schemas: Mapping[str, Schema]) -> None:
        """Find out which of these schemas do not compile, each by itself.

        Raises:
            InvalidRequestError: One of a strict function does not.
        """
        for i, function in calls.functions:
            schema = schemas[function.name]
            try:
                self.grammars.check(schema, place(i))
            except InvalidRequestError as error:
                if function.strict:
                    raise
                self._remember(function, schema, error)

    def _known(self, schema: Schema) -> Schema:
        return self._instead.get(_digest(schema), schema)

    def _remember(self, function: FunctionDefinition, schema: Schema, error: InvalidRequestError) -> None:
        """Have any object stand for a schema, and say so once."""
        key = _digest({"name": function.name, "schema": function.schema_of_arguments})
        with self._lock:
            said = key in self._instead
            for known in (key, _digest(schema)):
                self._instead[known] = ANY_OBJECT
            while len(self._instead) > MAX_KNOWN:
                del self._instead[next(iter(self._instead))]
        if not said:
            logger.warning("calls of the tool %s may have any arguments: %s", function.name, error.message)


def place(tool: int) -> str:
    """Return the field of a tool's schema."""
    return f"tools.{tool}.function.parameters"


def _digest(schema: Schema) -> bytes:
    return sha256(json.dumps(schema, sort_keys=True).encode()).digest()


def _arguments(function: FunctionDefinition, tool: int, allowance: Allowance) -> Schema:
    """Return what a function's arguments are held to. One without parameters has no arguments, as OpenAI
    says.

    Raises:
        InvalidRequestError: The schema is too large.
    """
    if isinstance(function, CustomFunction) and (held := function.input_format) is not None:
        check_definition(held.syntax, held.definition, f"tools.{tool}.custom.format.grammar.definition")
        return custom_parameters(held.syntax, held.definition)
    schema: dict[str, Any] = {**function.schema_of_arguments, **ANY_OBJECT}
    if tells_no_member(schema):
        schema |= NO_MEMBERS
    return json.loads(allowance.written(schema, place(tool)))
