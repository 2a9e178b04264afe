"""Fields for structured replies, and the constraint that they give."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from server.api.body import Body
from server.api.served import Served
from server.errors import UnsupportedFieldError
from server.grammar.compiler import Start

MAX_NAME = 64


class NamedSchema(Body):
    """OpenAI's. name and strict have no effect: a reply always fits the schema."""

    definition: Annotated[dict[str, Any], Field(alias="schema")]
    name: Annotated[str, Field(max_length=MAX_NAME)] | None = None
    strict: bool | None = None


class ResponseFormat(Body):
    """OpenAI's; a schema beside json_object is llama-server's."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None
    definition: Annotated[dict[str, Any] | None, Field(alias="schema")] = None


class StructuredFields(Body):
    """response_format is OpenAI's; grammar, and json_schema without a name, are llama-server's."""

    response_format: ResponseFormat | None = None
    json_schema: dict[str, Any] | None = None
    grammar: str | None = None


def forms(body: StructuredFields) -> list[str]:
    """Fields that ask for a structured reply; at most one is allowed."""
    given = {
        "grammar": bool(body.grammar),
        "json_schema": body.json_schema is not None,
        "response_format": body.response_format is not None and body.response_format.type != "text",
    }
    return [name for name, asks in given.items() if asks]


def incoherent(body: StructuredFields) -> tuple[str, str] | None:
    """The first of these fields that contradicts another, and why."""
    asked = body.response_format
    if asked is not None and asked.type == "json_schema" and asked.json_schema is None:
        return "response_format.json_schema", "required"
    if len(found := forms(body)) > 1:
        return found[1], f"a reply has one form, and {found[0]} asks for one already"
    return None


def constraint(served: Served, body: StructuredFields) -> Start | None:
    """None: any text. Raises InvalidRequestError with the field. Slow: not for the event loop."""
    if not (found := forms(body)):
        return None
    if served.grammars is None:
        raise UnsupportedFieldError(found[0])
    if body.grammar:
        return served.grammars.gbnf(body.grammar)
    schema, place = schema_of(body)
    return served.grammars.json_object() if schema is None else served.grammars.json_schema(schema, place)


def schema_of(body: StructuredFields) -> tuple[dict[str, Any] | None, str]:
    """The schema of a reply and its place in the body. None: there is none, or any object fits."""
    asked = body.response_format
    if asked is None or asked.type == "text":
        return body.json_schema, "json_schema"
    if asked.type == "json_schema" and asked.json_schema is not None:
        return asked.json_schema.definition, "response_format.json_schema.schema"
    return asked.definition, "response_format.schema"
