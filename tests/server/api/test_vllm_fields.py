"""vLLM's fields: honoured as vLLM does, or refused by name; a reply never ignores what was asked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from server.api.chat.chat_request import ChatRequest
from server.api.stages.submit import prepared_chat
from server.grammar.compiler import Compiler
from server.text.template import ChatTemplate
from tests.fake_backend import FakeBackend, FakeModel, FakeVocabulary
from tests.http_lead import Lead, serving
from tests.server.api.scripted import Script, services
from tests.server.api.test_odd_inputs import refused, text_of
from tests.server.api.test_tools import WEATHER, allows, asked
from tests.templates import THINKING

SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["cat", "dog"]}},
    "required": ["kind"],
    "additionalProperties": False,
}
LARK = 'start: WORD " " WORD\nWORD: /[a-c]{2}/'
GBNF = 'root ::= [a-c] [a-c] " " [a-c] [a-c]'
PAIR = re.compile("[a-c]{2} [a-c]{2}")
ROUTES = ("/v1/chat/completions", "/v1/completions")


@pytest.fixture(scope="module")
def lead() -> Iterator[Lead]:
    with serving(FakeBackend(FakeModel(seed=3, eog_rate=0.02), n_ctx=4096)) as one:
        yield one


def post(lead: Lead, path: str = ROUTES[0], **fields: Any) -> httpx.Response:
    prompt = (
        {"prompt": "hello"} if path == ROUTES[1] else {"messages": [{"role": "user", "content": "hello"}]}
    )
    body = {**prompt, "temperature": 1, "seed": 5, "max_tokens": 200, **fields}
    return httpx.post(lead.url + path, json=body, timeout=30)


def said(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    return choice["text"] if "text" in choice else choice["message"]["content"]


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("schema", [SCHEMA, json.dumps(SCHEMA)], ids=["object", "text"])
@pytest.mark.parametrize("former", [False, True])
def test_json_fits_its_schema(lead: Lead, path: str, schema: Any, former: bool):
    fields = {"guided_json": schema} if former else {"structured_outputs": {"json": schema}}
    assert json.loads(said(post(lead, path, **fields)))["kind"] in ("cat", "dog")


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    ("fields", "form"),
    [
        ({"structured_outputs": {"choice": ['say "yes"', "no/\n"]}}, re.compile('say "yes"|no/\n')),
        ({"guided_choice": ["yes", "no"]}, re.compile("yes|no")),
        ({"structured_outputs": {"regex": r"\d{3}-[a-f]/\d"}}, re.compile(r"\d{3}-[a-f]/\d")),
        ({"guided_regex": r"^(cat|dog)s?$"}, re.compile("(cat|dog)s?")),
        ({"guided_regex": r"a\/b\$"}, re.compile(r"a/b\$")),
        ({"structured_outputs": {"grammar": GBNF}}, PAIR),
        ({"structured_outputs": {"grammar": LARK}}, PAIR),
        ({"guided_grammar": GBNF}, PAIR),
    ],
    ids=str,
)
def test_replies_have_the_form_asked_for(lead: Lead, path: str, fields: Any, form: re.Pattern[str]):
    assert form.fullmatch(said(post(lead, path, **fields)))


def test_any_object_will_do(lead: Lead):
    fields: dict[str, Any] = {"structured_outputs": {"json_object": True}, "max_tokens": 2000}
    assert said(post(lead, **fields)).startswith("{")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"json": SCHEMA}, "guided_regex": "a"}, "structured_outputs.json"),
        ({"response_format": {"type": "json_object"}, "guided_choice": ["a"]}, "guided_choice"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        (
            {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " "}},
            "structured_outputs.whitespace_pattern",
        ),
        ({"structured_outputs": {"structural_tag": {}, "regex": "a"}}, None),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"grammar": "start: x"}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"grammar": "root ::= x"}}, "structured_outputs.grammar"),
        ({"guided_json": {"type": 5}}, "guided_json"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_grammar": LARK, "tools": [WEATHER]}, "guided_grammar"),
        ({"priority": 1}, "priority"),
        ({"bad_words": ["x"]}, "bad_words"),
        ({"allowed_token_ids": [1]}, "allowed_token_ids"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"truncate_prompt_tokens": 10}, "truncate_prompt_tokens"),
        ({"include_stop_str_in_output": True}, "include_stop_str_in_output"),
        ({"skip_special_tokens": False}, "skip_special_tokens"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"chat_template": "{{ messages }}"}, "chat_template"),
        ({"documents": [{"text": "x"}]}, "documents"),
        ({"stop_token_ids": [1 << 20]}, "stop_token_ids"),
        ({"repeat_penalty": 1.5, "repetition_penalty": 1.2}, "repetition_penalty"),
    ],
    ids=str,
)
def test_unsupported_field_is_named(lead: Lead, fields: dict[str, Any], param: str | None):
    response = post(lead, **fields)
    if param is None:
        assert response.status_code == 200
    else:
        assert str(refused(response)["param"]).startswith(param)


NEUTRAL: dict[str, Any] = {
    "priority": 0,
    "bad_words": [],
    "include_stop_str_in_output": False,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "use_beam_search": False,
    "length_penalty": 1.0,
    "guided_decoding_backend": "xgrammar",
    "stop_token_ids": [],
    "repetition_penalty": 1.0,
}


def test_defaults_of_vllm_change_nothing(lead: Lead):
    assert text_of(post(lead, **NEUTRAL)) == text_of(post(lead))


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("stream", [False, True])
def test_stop_tokens_end_a_reply(lead: Lead, path: str, stream: bool):
    text = said(post(lead, path))
    stop = text[5]
    response = post(lead, path, stop_token_ids=[ord(stop)], stream=stream)
    expected = text[: text.index(stop)]
    if stream:
        lines = [line.removeprefix("data: ") for line in response.text.splitlines() if '"choices"' in line]
        choices = [json.loads(line)["choices"][0] for line in lines]
        told = "".join(one.get("text") or one.get("delta", {}).get("content") or "" for one in choices)
        assert (told, choices[-1]["finish_reason"]) == (expected, "stop")
    else:
        assert said(response) == expected
        assert response.json()["choices"][0]["finish_reason"] == "stop"


def test_stop_tokens_wait_for_min_tokens(lead: Lead):
    text = said(post(lead))
    stop = ord(text[5])
    reply = post(lead, stop_token_ids=[stop], min_tokens=30).json()
    assert reply["usage"]["completion_tokens"] >= 30


def test_repetition_penalty_counts_the_prompt(lead: Lead):
    named = said(post(lead, repeat_penalty=1.7, repeat_last_n=-1))
    assert said(post(lead, repetition_penalty=1.7)) == named
    assert said(post(lead, repetition_penalty=1.7, repeat_last_n=4)) == said(
        post(lead, repeat_penalty=1.7, repeat_last_n=4)
    )


def test_thoughts_come_before_a_choice():
    """A model that thinks would otherwise have to answer at once."""
    vocabulary = FakeVocabulary()
    state = replace(services(Script(), vocabulary=vocabulary), template=ChatTemplate(THINKING))
    state = replace(state, grammars=Compiler(vocabulary))
    body = ChatRequest.model_validate(
        {"messages": [{"role": "user", "content": "hi"}], "structured_outputs": {"choice": ["yes", "no"]}}
    )
    [request] = prepared_chat(state, body).requests
    assert allows(request, "<think>\nHm.\n</think>\n\nyes") or allows(request, "Hm.\n</think>\n\nyes")
    assert not allows(request, "<think>\nHm.\n</think>\n\nmaybe")


def test_a_choice_stands_beside_calls():
    request = asked(tools=[WEATHER], structured_outputs={"choice": ["yes", "no"]})
    assert allows(request, "yes")
    assert allows(request, '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>')
    assert not allows(request, "maybe")
