"""Replies in a form by the bundled model: drafted for, as an OpenAI client asks for them."""

from __future__ import annotations

import json
from enum import Enum
from typing import Any

import httpx
import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field

from tests.process.duo import Duo

pytestmark = [pytest.mark.model, pytest.mark.timeout(180)]


class Mood(Enum):
    GOOD = "good"
    BAD = "bad"


class Language(BaseModel):
    name: str = Field(max_length=20)
    year: int = Field(ge=1940, le=2030)


class Answer(BaseModel):
    mood: Mood
    languages: list[Language] = Field(min_length=1, max_length=2)
    remark: str | None = Field(max_length=30)


ASKED: list[Any] = [{"role": "user", "content": "Name a programming language, as JSON."}]


def test_parse_always_gives_a_model(client: openai.OpenAI):
    for seed in range(4):
        reply = client.chat.completions.parse(
            model="default", messages=ASKED, response_format=Answer, temperature=1, seed=seed, max_tokens=300
        )
        assert reply.choices[0].finish_reason == "stop"
        assert isinstance(reply.choices[0].message.parsed, Answer)


def test_parse_of_a_stream(client: openai.OpenAI):
    with client.chat.completions.stream(
        model="default", messages=ASKED, response_format=Answer, temperature=1, seed=3, max_tokens=300
    ) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert len(snapshots) > 1
    assert isinstance(final.choices[0].message.parsed, Answer)
    assert snapshots[-1] == final.choices[0].message.content


def test_forced_text_is_drafted(duo: Duo):
    schema = {
        "type": "object",
        "properties": {
            "the_name_of_the_language": {"type": "string", "maxLength": 12},
            "a_long_property_name": {"enum": ["always the same words"]},
        },
        "required": ["the_name_of_the_language", "a_long_property_name"],
        "additionalProperties": False,
    }
    fields: dict[str, Any] = {"json_schema": schema, "temperature": 0.8, "seed": 11, "max_tokens": 200}
    exact = {"exactness": "width-stable"}  # else a near-tie at this temperature may fall either way
    drafted = duo.ask("Name a programming language.", speculative=exact, **fields)
    plain = duo.ask("Name a programming language.", speculative={**exact, "n_max": 0}, **fields)
    text = drafted["choices"][0]["message"]["content"]
    jsonschema.validate(json.loads(text), schema)
    assert text == plain["choices"][0]["message"]["content"]
    assert drafted["timings"]["draft_n_accepted"] > 3
    assert plain["timings"]["draft_n"] == 0


@pytest.mark.parametrize("extra", [{"n": 3}, {"n_beams": 2}, {"logprobs": True, "top_logprobs": 3}], ids=str)
def test_schema_allows_choices_beams_logprobs(duo: Duo, extra: dict[str, Any]):
    schema = {"type": "array", "items": {"enum": ["Python", "C", "Rust"]}, "minItems": 1, "maxItems": 3}
    reply = duo.ask("Name languages.", json_schema=schema, max_tokens=100, **{"temperature": 1, **extra})
    for choice in reply["choices"]:
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(choice["message"]["content"]), schema)


def test_any_object_and_cut_object(duo: Duo):
    form = {"type": "json_object"}
    reply = duo.ask("Give me a small JSON object.", response_format=form, max_tokens=2)
    assert reply["choices"][0]["finish_reason"] == "length"
    replies = [
        duo.ask("Give me {}", response_format=form, max_tokens=200, temperature=1, seed=seed)["choices"][0]
        for seed in range(4)
    ]
    whole = [one["message"]["content"] for one in replies if one["finish_reason"] == "stop"]
    for text in whole:
        assert isinstance(json.loads(text), dict)
    assert whole, replies


def test_a_tree_of_any_depth(duo: Duo):
    schema = {
        "type": "object",
        "properties": {
            "value": {"type": "integer", "minimum": 0, "maximum": 99},
            "left": {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
        },
        "required": ["value", "left"],
        "additionalProperties": False,
    }
    for seed in range(3):
        choice = duo.ask("A tree.", json_schema=schema, max_tokens=300, temperature=1, seed=seed)["choices"][
            0
        ]
        if choice["finish_reason"] == "stop":
            jsonschema.validate(json.loads(choice["message"]["content"]), schema)
        else:
            assert choice["message"]["content"].startswith("{")


def test_unholdable_schema_is_refused(duo: Duo):
    body = {"messages": ASKED, "json_schema": {"properties": {"x": {"uniqueItems": True}}}}
    response = httpx.post(f"{duo.url}/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "json_schema.properties.x.uniqueItems"
