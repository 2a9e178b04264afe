"""Replies in a form: every way to ask for one, what goes with it, and what is refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Literal

import httpx
import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field

from server.api.chat.chat_request import ChatRequest
from server.api.stages.submit import prepared_chat
from server.grammar.compiler import Compiler
from server.text.template import ChatTemplate
from tests.contract.contract import validate
from tests.fake_backend import IM_END, FakeVocabulary
from tests.http_lead import Lead
from tests.server.api.scripted import Script, services
from tests.server.api.test_chat import chunks_of

HELLO = [{"role": "user", "content": "hello there"}]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{2,5}$"},
        "kind": {"enum": ["cat", "dog"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 30},
    },
    "required": ["name", "kind", "age"],
    "additionalProperties": False,
}
GRAMMAR = r"""root ::= "{\"name\":\"" [a-z]{2,5} "\",\"kind\":\"" ("cat" | "dog") "\",\"age\":" [1-9] "}" """

WAYS: dict[str, dict[str, Any]] = {
    "OpenAI's": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "pet", "strict": True, "schema": SCHEMA},
        }
    },
    "not strict, and nameless": {
        "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA, "strict": None}}
    },
    "llama-server's field": {"json_schema": SCHEMA},
    "llama-server's object": {"response_format": {"type": "json_object", "schema": SCHEMA}},
    "a grammar": {"grammar": GRAMMAR},
    "beside text": {"response_format": {"type": "text"}, "json_schema": SCHEMA, "grammar": ""},
}


def post(lead: Lead, path: str = "/v1/chat/completions", **fields: Any) -> httpx.Response:
    body = {"messages": HELLO, "temperature": 1, "seed": 5, **fields}
    validate("ChatRequest", body)
    return httpx.post(lead.url + path, json=body, timeout=30)


def completion(lead: Lead, **fields: Any) -> dict[str, Any]:
    response = post(lead, **fields)
    assert response.status_code == 200, response.text
    validate("ChatCompletion", response.json())
    lead.until_idle()
    return response.json()


@pytest.mark.parametrize("way", WAYS)
def test_reply_fits_its_schema(lead: Lead, way: str):
    for seed in range(4):
        [choice] = completion(lead, seed=seed, **WAYS[way])["choices"]
        jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)
        assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("way", WAYS)
def test_streamed_it_is_the_same(lead: Lead, way: str):
    [choice] = completion(lead, **WAYS[way])["choices"]
    chunks = chunks_of(post(lead, stream=True, **WAYS[way]))
    told = [one for chunk in chunks for one in chunk["choices"]]
    assert "".join(one["delta"].get("content") or "" for one in told) == choice["message"]["content"]
    assert told[-1]["finish_reason"] == "stop"


def test_any_object_will_do(lead: Lead):
    likely_ends = {'"': 68, "}": 66, ":": 60}  # the toy has no taste for punctuation
    for seed in range(4):
        fields = {"response_format": {"type": "json_object"}, "logit_bias": likely_ends, "seed": seed}
        [choice] = completion(lead, **fields)["choices"]
        assert isinstance(json.loads(choice["message"]["content"]), dict)


def test_text_format_asks_nothing(lead: Lead):
    plain = completion(lead, max_tokens=20)["choices"]
    assert completion(lead, max_tokens=20, response_format={"type": "text"}, grammar="")["choices"] == plain
    assert not plain[0]["message"]["content"].startswith("{")


def test_cut_structured_reply_is_length(lead: Lead):
    [choice] = completion(lead, max_tokens=9, json_schema=SCHEMA)["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"].startswith("{")
    with pytest.raises(json.JSONDecodeError):
        json.loads(choice["message"]["content"])


def test_stop_string_ends_structured_reply(lead: Lead):
    [choice] = completion(lead, json_schema=SCHEMA, stop="kind")["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"].endswith('"')
    assert "kind" not in choice["message"]["content"]


def test_every_choice_fits_and_has_its_logprobs(lead: Lead):
    choices = completion(lead, n=4, json_schema=SCHEMA, logprobs=True, top_logprobs=2)["choices"]
    texts = {choice["message"]["content"] for choice in choices}
    assert len(texts) > 1
    for choice in choices:
        text = choice["message"]["content"]
        jsonschema.validate(json.loads(text), SCHEMA)
        spelled = b"".join(bytes(one["bytes"] or []) for one in choice["logprobs"]["content"])
        assert spelled == text.encode()


def test_beams_search_among_what_fits(lead: Lead):
    [choice] = completion(lead, n_beams=3, json_schema=SCHEMA)["choices"]
    jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)


def test_legacy_completions_have_it_too(lead: Lead):
    body = {"prompt": "x", "max_tokens": 600, "temperature": 1, **WAYS["OpenAI's"]}
    validate("CompletionRequest", body)
    response = httpx.post(f"{lead.url}/v1/completions", json=body, timeout=30)
    assert response.status_code == 200, response.text
    jsonschema.validate(json.loads(response.json()["choices"][0]["text"]), SCHEMA)


FORMAT = "response_format"
NOT: dict[str, Any] = {"type": "object", "properties": {"x": {"items": {"not": {}}}}}
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"grammar": "root ::= x"}, "grammar", "line 1, column 10"),
    ({"grammar": 'root ::= "a"', "json_schema": {}}, "json_schema", "grammar asks for one"),
    ({"json_schema": {}, FORMAT: {"type": "json_object"}}, FORMAT, "json_schema asks for one"),
    ({"grammar": 'root ::= "a"', FORMAT: {"type": "json_object"}}, FORMAT, "grammar asks for one"),
    ({FORMAT: {"type": "xml"}}, f"{FORMAT}.type", "json_schema"),
    ({FORMAT: "json"}, FORMAT, "object"),
    ({FORMAT: {}}, f"{FORMAT}.type", "required"),
    ({FORMAT: {"type": "json_schema"}}, f"{FORMAT}.json_schema", "required"),
    ({FORMAT: {"type": "json_schema", "json_schema": {"name": "x"}}}, f"{FORMAT}.json_schema.schema", ""),
    (
        {FORMAT: {"type": "json_schema", "json_schema": {"name": "x", "schema": []}}},
        f"{FORMAT}.json_schema.schema",
        "",
    ),
    (
        {FORMAT: {"type": "json_schema", "json_schema": {"name": "x", "schema": NOT}}},
        f"{FORMAT}.json_schema.schema.properties.x.items.not",
        "not supported",
    ),
    (
        {FORMAT: {"type": "json_object", "schema": NOT}},
        f"{FORMAT}.schema.properties.x.items.not",
        "not supported",
    ),
    ({"json_schema": NOT}, "json_schema.properties.x.items.not", "not supported"),
    ({"json_schema": {"type": "string", "pattern": "(["}}, "json_schema.pattern", "regex"),
    ({"json_schema": "{}"}, "json_schema", ""),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fields", "param", "reason"), REFUSED, ids=str)
def test_impossible_schema_names_its_place(
    lead: Lead, fields: dict[str, Any], param: str, reason: str, stream: bool
):
    body = {"messages": HELLO, "stream": stream, **fields}
    response = httpx.post(f"{lead.url}/v1/chat/completions", json=body, timeout=30)
    assert response.status_code == 400
    validate("Error", response.json())
    error = response.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert reason in error["message"]
    lead.until_idle()


def test_deeply_nested_json_is_400(lead: Lead):
    deep = '{"items":' * 900 + "{}" + "}" * 900
    body = f'{{"messages":[{{"role":"user","content":"x"}}],"json_schema":{deep}}}'
    response = httpx.post(f"{lead.url}/v1/chat/completions", content=body, timeout=30)
    assert response.status_code == 400
    assert "120 levels" in response.json()["error"]["message"]


class Owner(BaseModel):
    name: str = Field(pattern="^[A-Z][a-z]{1,4}$")


class Pet(BaseModel):
    kind: Literal["cat", "dog"]
    age: int = Field(ge=0, le=30)
    owners: list[Owner] = Field(max_length=2)
    best_friend: Owner | None


MESSAGES: list[Any] = HELLO


def test_the_sdk_parses_it_into_a_model(client: openai.OpenAI):
    reply = client.chat.completions.parse(model="toy", messages=MESSAGES, response_format=Pet, seed=1)
    pet = reply.choices[0].message.parsed
    assert isinstance(pet, Pet)
    assert pet.kind in ("cat", "dog")


def test_the_sdk_parses_what_it_streams(client: openai.OpenAI):
    with client.chat.completions.stream(
        model="toy", messages=MESSAGES, response_format=Pet, temperature=1, seed=2
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"content.delta", "content.done"} <= kinds
    assert isinstance(final.choices[0].message.parsed, Pet)


def test_sdk_reports_a_short_reply(client: openai.OpenAI):
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model="toy", messages=MESSAGES, response_format=Pet, max_tokens=5)


OPENED = (
    "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<think>\n{% endif %}"
)
MAYBE = OPENED.replace("{% if add_generation_prompt %}<think>\n{% endif %}", "{# <think> #}")
HM = "hm\n</think>\n\n"


@pytest.mark.parametrize(
    ("template", "fields", "replies", "others"),
    [
        (OPENED, {}, [HM + '{"a": 1}'], ['{"a": 1}', HM + "1"]),
        (OPENED, {"reasoning_format": "none"}, [HM + '{"a": 1}'], ['{"a": 1}']),
        (MAYBE, {}, ['{"a": 1}', "<think>\n" + HM + '{"a": 1}'], ["<think>\n" + HM, "1"]),
        (MAYBE, {"reasoning_format": "none"}, ['{"a": 1}'], ["<think>\n" + HM + '{"a": 1}']),
        (MAYBE, {"tools": [], "tool_choice": "none"}, ["<think>\n" + HM + '{"a": 1}'], [HM]),
    ],
)
def test_thoughts_come_before_structured_reply(
    template: str, fields: dict[str, Any], replies: list[str], others: list[str]
):
    vocabulary = FakeVocabulary()
    known = replace(services(Script()), template=ChatTemplate(template), grammars=Compiler(vocabulary))
    body = ChatRequest.model_validate(
        {"messages": HELLO, "response_format": {"type": "json_object"}, **fields}
    )
    (request,) = prepared_chat(known, body).requests
    assert request.constraint
    for reply, fits in [*((reply, True) for reply in replies), *((other, False) for other in others)]:
        state, let = request.constraint(), True
        for token in [*reply.encode(), IM_END]:
            let = let and state.allows(token)
            state.accept(token)
        assert let == fits, reply
