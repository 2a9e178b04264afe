"""Bodies of requests: the contract has their fields and bounds, and null where a field may be absent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import pytest
from pydantic import ValidationError

from server.api.contract.document import FORMS
from tests.contract.contract import CONTRACT

Schema = Mapping[str, Any]

SCHEMAS: Schema = CONTRACT["components"]["schemas"]
BY_HAND = ("seed", "logit_bias", "prompt", "input", "content", "filename", "tfs_z")
"""Fields that a validator checks, not the form: their tests are those of their routes."""

BOUNDS = (
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
    "maxProperties",
    "pattern",
)


def forms(schema: Schema, root: Schema) -> Iterator[Schema]:
    """Yield a schema and its alternatives, references followed."""
    while "$ref" in schema:
        found: Any = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        schema = found
    yield schema
    for key in ("anyOf", "oneOf"):
        for alternative in schema.get(key, ()):
            yield from forms(alternative, root)


def fields(schemas: Sequence[Schema], root: Schema) -> dict[str, list[Schema]]:
    """Return by name what each alternative says of a field; [] are the items of a list."""
    found: dict[str, list[Schema]] = {}
    for form in (form for schema in schemas for form in forms(schema, root)):
        for name, field in form.get("properties", {}).items():
            found.setdefault(name, []).append(field)
        if isinstance(form.get("items"), dict):
            found.setdefault("[]", []).append(form["items"])
    return found


def bounds(schemas: Sequence[Schema], root: Schema) -> set[tuple[str, Any]]:
    """Return every bound on a field's values, of all its forms."""
    all_forms = [form for schema in schemas for form in forms(schema, root)]
    return {(name, form[name]) for form in all_forms for name in BOUNDS if name in form}


def values(schemas: Sequence[Schema], root: Schema) -> set[Any]:
    """Return the allowed values where they are limited; null is always allowed for an optional field."""
    all_forms = [form for schema in schemas for form in forms(schema, root)]
    listed = {value for form in all_forms for value in form.get("enum", ())}
    return (listed | {form["const"] for form in all_forms if "const" in form}) - {None}


def required(schemas: Sequence[Schema], root: Schema) -> set[str]:
    return {name for schema in schemas for form in forms(schema, root) for name in form.get("required", ())}


def may_be_null(schema: Schema) -> bool:
    """Return True if a form allows null, or anything."""
    all_forms = list(forms(schema, CONTRACT))
    told = [form for form in all_forms if {"type", "enum", "const"} & set(form)]
    allowed = [(form.get("type", ()), form.get("enum", ())) for form in told]
    return not told or any("null" in types or None in listed for types, listed in allowed)


def same(place: str, listed: Sequence[Schema], kept: Sequence[Schema], root: Schema) -> None:
    """Check that both say the same of this place and all below it. Raises AssertionError."""
    assert bounds(listed, CONTRACT) == bounds(kept, root), place
    assert values(listed, CONTRACT) == values(kept, root), place
    assert required(listed, CONTRACT) == required(kept, root), place
    told, read = fields(listed, CONTRACT), fields(kept, root)
    assert set(told) == set(read), place
    optional = set(told) - required(kept, root) - {"[]"}
    assert [name for name in optional if not all(map(may_be_null, told[name]))] == [], place
    for name in told:
        same(f"{place}.{name}", told[name], read[name], root)


@pytest.mark.parametrize("name", sorted(FORMS))
def test_contract_lists_exactly_read_fields(name: str):
    form = FORMS[name]
    listed = SCHEMAS[name]
    assert set(listed["properties"]) == set(form.model_fields) - set(form.unsupported)
    for field in form.unsupported:
        assert field in listed["description"], field


@pytest.mark.parametrize("name", sorted(FORMS))
def test_contract_and_code_require_alike(name: str):
    kept = {field for field, info in FORMS[name].model_fields.items() if info.is_required()}
    if name == "RpcCompletionParams":
        kept |= {"prompt"}  # which the form of a legacy completion does not require
    assert set(SCHEMAS[name].get("required", ())) == kept


@pytest.mark.parametrize(
    ("name", "field"),
    [
        (name, field)
        for name in sorted(FORMS)
        for field in sorted(SCHEMAS[name]["properties"])
        if field not in BY_HAND
    ],
)
def test_contract_and_code_share_forms(name: str, field: str):
    root = FORMS[name].model_json_schema(by_alias=True)
    same(f"{name}.{field}", [SCHEMAS[name]["properties"][field]], [root["properties"][field]], root)


def test_a_seed_has_64_bits():
    seed = SCHEMAS["ChatRequest"]["properties"]["seed"]
    assert (seed["minimum"], seed["maximum"]) == (-(1 << 63), (1 << 64) - 1)


def lists(schema: object) -> Iterator[Mapping[str, Any]]:
    """Yield all lists in pydantic's schema of a form, except those whose items may be anything."""
    if isinstance(schema, dict):
        node = cast(dict[str, Any], schema)
        if node.get("type") == "list" and node.get("items_schema", {"type": "any"})["type"] != "any":
            yield node
        for inner in node.values():
            yield from lists(inner)
    elif isinstance(schema, list | tuple):
        for inner in cast(Sequence[object], schema):
            yield from lists(inner)


@pytest.mark.parametrize("name", sorted(FORMS))
def test_first_wrong_item_stops_reading(name: str):
    """A body of a million wrong items must not get as many complaints."""
    found = list(lists(FORMS[name].__pydantic_core_schema__))
    assert [one for one in found if not one.get("fail_fast")] == []


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("ChatRequest", {"messages": [1] * 1000}),
        ("ChatRequest", {"messages": [], "speculative": {str(i): 1 for i in range(1000)}}),
        ("ResponseRequest", {"input": "x", "metadata": {str(i): 1 for i in range(1000)}}),
        ("EmbeddingRequest", {"input": [[1.5] * 1000] * 1000}),
        ("TokenizeRequest", {"content": [None] * 1000}),
    ],
)
def test_many_faults_give_few_complaints(name: str, body: dict[str, Any]):
    with pytest.raises(ValidationError) as raised:
        FORMS[name].model_validate(body)
    assert raised.value.error_count() < 10


def test_every_body_is_compared():
    """A new route cannot bring a form that nobody looks at."""
    bodies = {
        content["schema"]["$ref"].rpartition("/")[2]
        for item in CONTRACT["paths"].values()
        for operation in item.values()
        for content in operation.get("requestBody", {}).get("content", {}).values()
        if "$ref" in content["schema"]
    }
    assert bodies <= set(FORMS)
