"""Make OpenAPI schemas of requests and answers from their models.

A docstring below a field becomes the field's description, so each description is written only once."""

from __future__ import annotations

import ast
import inspect
import itertools
import sys
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from types import ModuleType
from typing import Any, cast

from pydantic import TypeAdapter

from server.api.body import Body

Json = dict[str, Any]
PLACE = "#/components/schemas/"
SUFFIX = "Shape"
"""Suffix of a shape's class name if another class has the shape's name. Schemas are named without it."""


def schemas_of(named: Mapping[str, Any]) -> Json:
    """Return the schemas, by name, of these types and of all types that they reference.

    Args:
        named: Types by the names of their schemas.
    """
    adapters: list[Any] = [(name, "validation", TypeAdapter(kind)) for name, kind in named.items()]
    places, defined = TypeAdapter.json_schemas(adapters, ref_template=PLACE + "{model}")
    found: Json = dict(defined.get("$defs", {}))
    renamed: dict[str, str] = {}
    for (name, _), schema in places.items():
        own = str(schema.get("$ref", "")).removeprefix(PLACE)
        if own in found and own != name:
            renamed[own] = name
        elif not own:
            found[str(name)] = schema
    renamed |= {name: name.removesuffix(SUFFIX) for name in found if name.endswith(SUFFIX)}
    models = _models_by_name()
    return {
        renamed.get(name, name): _tidy_schema(_with_descriptions(name, schema, models), renamed)
        for name, schema in found.items()
    }


def _models_by_name() -> dict[str, Any]:
    """Return all classes and named types of the API by name."""
    modules = [module for name, module in sys.modules.items() if name.startswith("server.api")]
    return {
        name: kind for module in modules for name, kind in vars(module).items() if _is_named(kind, module)
    }


def _is_named(kind: Any, module: ModuleType) -> bool:
    return getattr(kind, "__module__", None) == module.__name__


def _with_descriptions(name: str, schema: Json, models: Mapping[str, Any]) -> Json:
    """Return a schema with descriptions, with nullable request fields, and without unsupported fields.

    Args:
        name: Name of the class or type.
        schema: Its schema.
        models: Classes and types by name.
    """
    model = models.get(name)
    fields: Json = schema.get("properties", {})
    if model is not None and not isinstance(model, type):
        return schema | _docstring_of(model.__name__, model.__module__)
    told = {} if model is None else _field_docstrings(model)
    asked = model if isinstance(model, type) and issubclass(model, Body) else None
    required = schema.get("required", ())
    described: Json = {}
    for field, one in fields.items():
        if asked is None or field not in asked.unsupported:
            known = _or_null(one) if asked and field not in required else one
            described[field] = _described_field(known, told, field)
    schema = {**schema, "properties": described} if fields else dict(schema)
    if fields and not asked and schema.get("additionalProperties") is not True:
        schema["additionalProperties"] = False
    elif schema.get("additionalProperties") is True:
        del schema["additionalProperties"]
    if asked is not None and asked.unsupported:
        refused = f"Refused by name unless they change nothing: {', '.join(asked.unsupported)}."
        schema["description"] = f"{schema.get('description', '')}\n\n{refused}".strip()
    return schema


def _described_field(schema: Json, told: Mapping[str, str], field: str) -> Json:
    text = told.get(field.strip("_"))
    return schema if text is None else {**schema, "description": text}


def _or_null(schema: Json) -> Json:
    """Return the schema of a request's field, extended to allow null, which means an absent field."""
    options = schema.get("anyOf")
    if options is not None:
        return schema if {"type": "null"} in options else {**schema, "anyOf": [*options, {"type": "null"}]}
    if not schema or ("type" not in schema and not {"$ref", "enum", "const", "oneOf"} & set(schema)):
        return schema  # it allows any value, null too
    beside = {key: schema[key] for key in ("default", "description") if key in schema}
    return {
        "anyOf": [{key: one for key, one in schema.items() if key not in beside}, {"type": "null"}],
        **beside,
    }


@cache
def _field_docstrings(model: Any) -> dict[str, str]:
    """Return the docstrings below fields of a model and of its base classes, by field."""
    found: dict[str, str] = {}
    bases = getattr(model, "__orig_bases__", None) or getattr(model, "__bases__", ())
    for base in reversed(bases):
        if getattr(base, "__module__", "").startswith("server.api"):
            found |= _field_docstrings(base)
    if not isinstance(model, type):
        return found
    [tree] = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    body = cast(ast.ClassDef, tree).body
    told = dict(_docstrings_below(body))
    aliases = {name: field.alias for name, field in getattr(model, "model_fields", {}).items() if field.alias}
    return found | {aliases.get(name, name): text for name, text in told.items()}


@cache
def _docstring_of(name: str, module: str) -> Json:
    """Return the docstring of a type in a module as a schema's description; {} if it has none."""
    below = dict(_docstrings_below(ast.parse(inspect.getsource(sys.modules[module])).body))
    return {"description": below[name]} if name in below else {}


def _docstrings_below(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for field, next_one in itertools.pairwise(body):
        match field, next_one:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, inspect.cleandoc(text)
            case (
                ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, inspect.cleandoc(text)
            case _:
                pass


def _tidy_schema(schema: Any, renamed: Mapping[str, str]) -> Any:
    """Return the schema without titles, with renamed references, and with `null` among the types.

    renamed: New names of schemas, by old name.
    """
    if isinstance(schema, list):
        return [_tidy_schema(one, renamed) for one in cast(list[Any], schema)]
    if not isinstance(schema, dict):
        return schema
    given = cast(Json, schema)
    found: Json = {}
    for key, value in given.items():
        if key == "properties":
            found[key] = {name: _tidy_schema(one, renamed) for name, one in value.items()}
        elif key == "$ref":
            name = value.removeprefix(PLACE)
            found[key] = PLACE + renamed.get(name, name)
        elif key == "oneOf" and not any(set(one) == {"required"} for one in value):
            found["anyOf"] = _tidy_schema(value, renamed)  # values may fit several alternatives
        elif key in ("enum", "default", "const"):
            found[key] = value
        elif key == "description":
            found[key] = " ".join(str(value).split())
        elif key not in ("title", "discriminator"):
            found[key] = _tidy_schema(value, renamed)
    if found.get("default", 0) is None:
        del found["default"]
    return _as_nullable(found)


def _as_nullable(schema: Json) -> Json:
    """Write a choice between one type and null as a list of both types; return other schemas unchanged."""
    options = schema.get("anyOf", ())
    rest = [one for one in options if one != {"type": "null"}]
    if len(options) != len(rest) + 1 or len(rest) != 1 or "type" not in rest[0]:
        return schema
    [one] = rest
    types = [one["type"]] if isinstance(one["type"], str) else one["type"]
    beside = {key: value for key, value in schema.items() if key != "anyOf"}
    enum = {"enum": [*one["enum"], None]} if "enum" in one else {}
    if "const" in one:
        return {"enum": [one["const"], None], **beside}
    return {**one, "type": [*types, "null"], **enum, **beside}
