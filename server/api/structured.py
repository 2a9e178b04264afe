"""Fields that demand structured replies, and the form of reply that they describe."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import BeforeValidator, Field, WithJsonSchema

from server.api.body import Body
from server.grammar.schema_form import Schema

MAX_SCHEMA_NAME = 64
MAX_CHOICE_TEXTS = 1000
"""Maximum texts of a choice: llguidance gives up at more alternatives at one position."""


class NamedSchema(Body):
    """OpenAI's schema of a reply. The reply always fits the schema, whether strict or not."""

    definition: Annotated[dict[str, Any], Field(alias="schema")]
    name: Annotated[str, Field(max_length=MAX_SCHEMA_NAME)] | None = None
    """Without effect."""
    strict: bool | None = None
    """Without effect."""


class ResponseFormat(Body):
    """OpenAI's description of a structured reply."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None
    """Schema for the type json_schema. The reply fits the schema, whether strict or not."""
    definition: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    """Schema for the type json_object, as in llama-server. Absent: any object."""


def _read_json(given: Any) -> Any:
    """Return the value of JSON text; return other values unchanged."""
    try:
        return json.loads(given) if isinstance(given, str) else given
    except (ValueError, RecursionError):
        raise ValueError("must be a JSON schema, as an object or as text") from None


SchemaOrText: TypeAlias = Annotated[
    dict[str, Any] | None, BeforeValidator(_read_json), WithJsonSchema({"type": ["object", "string"]})
]
Choice: TypeAlias = Annotated[list[str], Field(min_length=1, max_length=MAX_CHOICE_TEXTS, fail_fast=True)]


class StructuredOutputs(Body):
    """vLLM's description of a structured reply: one of the first five fields is required."""

    definition: Annotated[SchemaOrText, Field(alias="json")] = None
    """A JSON schema, or its JSON text."""
    json_object: bool | None = None
    """true: any JSON object."""
    regex: str | None = None
    """A regular expression that the whole reply matches."""
    choice: Choice | None = None
    """The reply is one of these texts."""
    grammar: str | None = None
    """A grammar: GBNF if a rule has `::=`, else Lark."""
    structural_tag: Any = None
    """Refused."""
    whitespace_pattern: str | None = None
    """Refused."""
    disable_additional_properties: bool = False
    """true is refused: set additionalProperties in the schema instead."""


class StructuredFields(Body):
    """Fields that demand a structured reply; a request may have at most one."""

    response_format: ResponseFormat | None = None
    """The form of a reply that calls no tools."""
    json_schema: dict[str, Any] | None = None
    """A JSON schema that the reply must fit; llama-server's name."""
    grammar: str | None = None
    """A GBNF grammar that the reply must fit; llama-server's name. Empty: none."""
    structured_outputs: StructuredOutputs | None = None
    """vLLM's field: a schema, regular expression, choice of texts or grammar that the reply must fit."""
    guided_json: SchemaOrText = None
    """The former name of `structured_outputs.json`."""
    guided_regex: str | None = None
    """The former name of `structured_outputs.regex`."""
    guided_choice: Choice | None = None
    """The former name of `structured_outputs.choice`."""
    guided_grammar: str | None = None
    """The former name of `structured_outputs.grammar`."""


@dataclass(frozen=True, slots=True)
class WantedForm:
    """The form that a reply must have: exactly one of schema, rule and grammar is set."""

    place: str
    """The request's field that demands this form."""
    schema: Schema | None = None
    """The reply is JSON that fits this schema."""
    rule: str = ""
    """The reply is a text that this Lark expression describes."""
    grammar: str = ""
    """The reply is a text of this grammar, GBNF or Lark."""

    @property
    def field(self) -> str:
        """Return the outermost field of the request that contains `place`."""
        return self.place.partition(".")[0]


ANY_JSON_OBJECT: Schema = {"type": "object"}


def wanted_forms(body: StructuredFields) -> list[WantedForm]:
    """Return all forms that these fields demand. A valid request has at most one."""
    found = [WantedForm("grammar", grammar=body.grammar)] if body.grammar else []
    if body.json_schema is not None:
        found.append(WantedForm("json_schema", body.json_schema))
    asked = body.response_format
    if asked is not None and asked.type == "json_object":
        found.append(WantedForm("response_format.schema", asked.definition or ANY_JSON_OBJECT))
    elif asked is not None and asked.type == "json_schema" and asked.json_schema is not None:
        found.append(WantedForm("response_format.json_schema.schema", asked.json_schema.definition))
    former = {"json": body.guided_json, "regex": body.guided_regex}
    former |= {"choice": body.guided_choice, "grammar": body.guided_grammar}
    found += _of_vllm("guided_", former)
    if (given := body.structured_outputs) is not None:
        names = {"json": given.definition, "regex": given.regex, "choice": given.choice}
        any_object = ANY_JSON_OBJECT if given.json_object else None
        found += _of_vllm(
            "structured_outputs.", {**names, "grammar": given.grammar, "json_object": any_object}
        )
    return found


def _of_vllm(prefix: str, given: dict[str, Any]) -> list[WantedForm]:
    """Return the forms that vLLM's fields demand. `given`: their values, by name without `prefix`."""
    found: list[WantedForm] = []
    for name, value in given.items():
        place = prefix + name
        match name:
            case _ if value is None:
                continue
            case "regex":
                found.append(WantedForm(place, rule=_regex_expression(value)))
            case "choice":
                texts = cast(list[str], value)
                rule = " | ".join(json.dumps(text, ensure_ascii=False) for text in dict.fromkeys(texts))
                found.append(WantedForm(place, rule=f"({rule})"))
            case "grammar":
                found.append(WantedForm(place, grammar=value))
            case _:
                found.append(WantedForm(place, value))
    return found


def _regex_expression(regex: str) -> str:
    """Return a Lark expression for a regular expression that must match the whole text."""
    whole = re.sub(r"(?<!\\)((?:\\\\)*)\$\Z", r"\1", regex.removeprefix("^"))
    escaped = re.sub(r"(\\.)|/", lambda found: found[1] or r"\/", whole, flags=re.DOTALL)
    return f"/{escaped}/".replace("\n", r"\n") if escaped else '""'


def forms(body: StructuredFields) -> list[str]:
    """Return the names of the fields that demand a structured reply; a valid request has at most one."""
    return [form.field for form in wanted_forms(body)]


def incoherent(body: StructuredFields) -> tuple[str, str] | None:
    """Return the first contradictory or unsupported field, and why it is refused; None if there is none."""
    asked, vllm = body.response_format, body.structured_outputs
    if asked is not None and asked.type == "json_schema" and asked.json_schema is None:
        return "response_format.json_schema", "required"
    if vllm is not None:
        for name in ("structural_tag", "whitespace_pattern", "disable_additional_properties"):
            if getattr(vllm, name):
                return f"structured_outputs.{name}", "not supported by this server"
    found = wanted_forms(body)
    if len(found) > 1:
        first, second = (
            form.place if form.field == "structured_outputs" else form.field for form in found[:2]
        )
        return second, f"a reply has one form, and {first} asks for one already"
    if vllm is not None and not found:
        return "structured_outputs", "needs json, json_object, regex, choice or grammar"
    return None


def wanted_form(body: StructuredFields) -> WantedForm | None:
    """Return the form that a reply must have, None for any text."""
    return next(iter(wanted_forms(body)), None)
