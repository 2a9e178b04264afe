"""Calls of tools and thoughts, as chat completions tell them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from server.api.services import Services
from server.engine.events import Committed, Finished, Started, Stats
from server.engine.request import GenerationRequest
from server.grammar.compiler import Compiler
from server.sampling.logprobs import TokenLogprobs
from server.text.template import ChatTemplate
from tests.contract.contract import validate
from tests.fake_backend import FakeVocabulary
from tests.server.api.scripted import Call, Script, services
from tests.server.text.vocabularies import MarkedVocabulary
from tests.templates import LLAMA3_TOOLS, MISTRAL, REASONING, THINKING

HELLO = [{"role": "user", "content": "What is the weather in Paris?"}]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "d", "parameters": CITY}}
CLOCK = {"type": "function", "function": {"name": "clock"}}
TOOLS = [WEATHER, CLOCK]
PARIS = '{"city": "Paris"}'
A_CALL = f'<tool_call>\n{{"name": "weather", "arguments": {PARIS}}}\n</tool_call>'
ANOTHER = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'


def steps(text: str, vocabulary: FakeVocabulary, size: int = 7) -> list[Committed]:
    """Return `size` tokens a step, with logprobs that count them."""
    tokens = vocabulary.tokenize(text, special=True)
    known = [TokenLogprobs(token, -float(i)) for i, token in enumerate(tokens)]
    return [
        Committed(tuple(part), (None,) * len(part), logprobs=tuple(known[i : i + size]))
        for i in range(0, len(tokens), size)
        for part in [tokens[i : i + size]]
    ]


def setting(
    script: Script, vocabulary: FakeVocabulary, template: str | None = None, *, grammars: bool = False
) -> Services:
    one = replace(services(script, vocabulary=vocabulary), template=ChatTemplate(template))
    one = replace(one, model=replace(one.model, n_ctx=1 << 16))  # room for many tools
    return replace(one, grammars=Compiler(vocabulary)) if grammars else one


async def tell(text: str, *, template: str | None = None, marks: bool = False, **fields: Any) -> Call:
    """Return the answer to a request whose reply is this text."""
    vocabulary = MarkedVocabulary() if marks else FakeVocabulary()
    committed = steps(text, vocabulary)
    n = sum(len(one.tokens) for one in committed)
    reason = fields.pop("reason", "stop")
    script = Script(Started(5, 2), *committed, Finished(reason, Stats(5, 2, n, len(committed), 1.0, 2.0)))
    body = {"messages": HELLO, **fields}
    validate("ChatRequest", body)
    one = Call(setting(script, vocabulary, template), body=body)
    await asyncio.wait_for(one.run(), 10)
    assert one.status == 200, one.content
    return one


async def whole(text: str, **fields: Any) -> dict[str, Any]:
    body = (await tell(text, **fields)).json
    validate("ChatCompletion", body)
    return body["choices"][0]


async def deltas(text: str, **fields: Any) -> list[dict[str, Any]]:
    """Return the deltas of the chunks that are not empty, and the reason in the last."""
    *chunks, end = (await tell(text, **fields, stream=True)).events
    assert end == "[DONE]"
    for chunk in chunks:
        validate("ChatCompletionChunk", chunk)
    told = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert told[0] == {"role": "assistant", "content": None}
    assert told[-1] == {}
    return [*told[1:-1], {"finish_reason": chunks[-1]["choices"][0]["finish_reason"]}]


def asked(**fields: Any) -> GenerationRequest:
    """Return what the engine is asked for."""
    return request_of(None, **fields)


def request_of(template: str | None, *, grammars: bool = True, **fields: Any) -> GenerationRequest:
    script = Script(Started(5, 2), Finished("stop", Stats(5, 2, 0, 0, 1.0, 2.0)))
    body = {"messages": HELLO, "tools": TOOLS, **fields}
    one = Call(setting(script, FakeVocabulary(), template, grammars=grammars), body=body)
    asyncio.run(asyncio.wait_for(one.run(), 10))
    assert one.status == 200, one.content
    return script.requests[0]


def prompt_of(template: str | None = None, **fields: Any) -> str:
    pieces = [FakeVocabulary().piece(t, special=True) for t in request_of(template, **fields).prompt]
    return b"".join(pieces).decode()


@pytest.mark.parametrize("marks", [False, True])
async def test_call_has_openai_form(marks: bool):
    told = await deltas(f"Let me see.\n{A_CALL}\n{ANOTHER}", tools=TOOLS, marks=marks)
    text = "".join(delta.get("content") or "" for delta in told)
    assert text == "Let me see."
    calls = [one for delta in told for one in delta.get("tool_calls", ())]
    begun = [one for one in calls if "id" in one]
    assert [(one["index"], one["type"], one["function"]["name"]) for one in begun] == [
        (0, "function", "weather"),
        (1, "function", "clock"),
    ]
    assert len({one["id"] for one in begun}) == 2
    assert all("name" not in one["function"] for one in calls if one not in begun)
    arguments = ["", ""]
    for one in calls:
        arguments[one["index"]] += one["function"]["arguments"]
    assert arguments == [PARIS, "{}"]
    assert told[-1] == {"finish_reason": "tool_calls"}


async def test_arguments_are_told_as_they_grow():
    vocabulary = FakeVocabulary()
    script = Script(Started(5, 2))
    one = Call(setting(script, vocabulary), body={"messages": HELLO, "tools": TOOLS, "stream": True})
    running = asyncio.ensure_future(one.run())
    parts = {A_CALL[:50]: b'"weather"', A_CALL[50:55]: b'"arguments":"y', A_CALL[55:]: b'"arguments":"Paris'}
    for part, seen in parts.items():
        script.tell(steps(part, vocabulary, 99)[0])
        await one.until_sent(seen)
    script.tell(Finished("stop", Stats(5, 2, 9, 9, 1.0, 2.0)))
    await asyncio.wait_for(running, 10)


@pytest.mark.parametrize("marks", [False, True])
async def test_reply_of_calls_lacks_content(marks: bool):
    choice = await whole(A_CALL, tools=TOOLS, marks=marks)
    message = choice["message"]
    assert message["content"] is None
    assert message["tool_calls"][0]["function"] == {"name": "weather", "arguments": PARIS}
    assert choice["finish_reason"] == "tool_calls"


async def test_cut_call_ends_by_length():
    choice = await whole(A_CALL[:50], tools=TOOLS, reason="length")
    assert choice["finish_reason"] == "length"
    assert PARIS.startswith(choice["message"]["tool_calls"][0]["function"]["arguments"])


async def test_stop_string_in_call_is_ignored():
    choice = await whole(A_CALL, tools=TOOLS, stop="Par")
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "Paris"}'
    assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("text", [A_CALL[:50], f"{ANOTHER}{A_CALL[:50]}"])
async def test_broken_call_is_not_executable(text: str):
    choice = await whole(text, tools=TOOLS)
    assert choice["message"]["tool_calls"][-1]["function"]["name"] == "weather"
    assert choice["finish_reason"] == "stop"
    assert (await deltas(text, tools=TOOLS))[-1] == {"finish_reason": "stop"}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_may_have_lone_surrogates(stream: bool):
    arguments = json.dumps(json.dumps({"city": "\ud800"}, ensure_ascii=False))
    text = f'<tool_call>{{"name": "weather\\udfff", "arguments": {arguments}}}</tool_call>'
    one = await tell(text, tools=TOOLS, stream=stream)
    choices = [chunk["choices"][0] for chunk in one.events[:-1]] if stream else one.json["choices"]
    told = [choice["delta" if stream else "message"].get("tool_calls", []) for choice in choices]
    functions = [call["function"] for calls in told for call in calls]
    assert functions[0]["name"] == "weather?"
    assert "".join(function["arguments"] for function in functions) == '{"city": "?"}'


@pytest.mark.parametrize("fields", [{}, {"tools": TOOLS, "tool_choice": "none"}])
async def test_without_tools_nothing_is_a_call(fields: dict[str, Any]):
    choice = await whole(A_CALL, **fields)
    assert choice["message"]["content"] == A_CALL
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "stop"


async def test_parallel_off_allows_one_call():
    choice = await whole(f"{A_CALL}\n{ANOTHER}", tools=TOOLS, parallel_tool_calls=False)
    assert len(choice["message"]["tool_calls"]) == 1


async def test_logprobs_cover_content_tokens_everything():
    options: dict[str, Any] = {"tools": TOOLS, "logprobs": True, "return_tokens": True, "marks": True}
    text = f"Let me see.\n{A_CALL}"
    tokens = MarkedVocabulary().tokenize(text, special=True)
    choice = await whole(text, **options)
    assert choice["tokens"] == tokens
    assert [one["logprob"] for one in choice["logprobs"]["content"]] == [-float(i) for i in range(11)]
    *chunks, _ = (await tell(text, **options, stream=True)).events
    parts = [chunk["choices"][0] for chunk in chunks]
    assert [token for part in parts for token in part.get("tokens", [])] == tokens
    logprobs = [part["logprobs"]["content"] for part in parts if part["logprobs"]]
    assert [one["logprob"] for part in logprobs for one in part] == [-float(i) for i in range(11)]
    nothing: dict[str, Any] = {"content": []}
    for part in parts:
        beside = "".join(one["token"] for one in (part["logprobs"] or nothing)["content"])
        assert beside == (part["delta"].get("content") or "")


@pytest.mark.parametrize("marks", [False, True])
async def test_thoughts_are_told_apart_and_counted(marks: bool):
    text = "<think>\nHm, so.\n</think>\n\nYes."
    told = await deltas(text, template=THINKING, marks=marks)
    assert "".join(delta.get("reasoning_content", "") for delta in told) == "Hm, so."
    assert "".join(delta.get("content") or "" for delta in told) == "Yes."
    answer = await tell(text, template=THINKING, marks=marks)
    message, usage = answer.json["choices"][0]["message"], answer.json["usage"]
    assert (message["reasoning_content"], message["content"]) == ("Hm, so.", "Yes.")
    vocabulary = MarkedVocabulary() if marks else FakeVocabulary()
    n_thought = len(vocabulary.tokenize("<think>\nHm, so.\n</think>", special=True))
    assert usage["completion_tokens_details"]["reasoning_tokens"] == n_thought
    streamed = await tell(
        text, template=THINKING, marks=marks, stream=True, stream_options={"include_usage": True}
    )
    assert streamed.events[-2]["usage"]["completion_tokens_details"]["reasoning_tokens"] == n_thought


async def test_thoughts_that_the_prompt_opens():
    choice = await whole("Hm.\n</think>\n\nYes.", template=REASONING)
    assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == ("Hm.", "Yes.")
    choice = await whole("Yes.", template=REASONING, chat_template_kwargs={"enable_thinking": False})
    assert "reasoning_content" not in choice["message"]
    assert choice["message"]["content"] == "Yes."
    choice = await whole("Yes.", template=REASONING, reasoning_effort="none")
    assert choice["message"]["content"] == "Yes."


@pytest.mark.parametrize(("template", "form"), [(THINKING, "none"), (None, "auto")])
async def test_thoughts_that_stay_in_the_content(template: str | None, form: str):
    text = "<think>Hm.</think>Yes."
    choice = await whole(text, template=template, reasoning_format=form)
    assert choice["message"]["content"] == text
    assert "reasoning_content" not in choice["message"]


async def test_thoughts_and_then_a_call():
    choice = await whole(f"<think>Hm.</think>\n{A_CALL}", template=THINKING, tools=TOOLS)
    assert choice["message"]["reasoning_content"] == "Hm."
    assert choice["message"]["content"] is None
    assert choice["finish_reason"] == "tool_calls"


async def test_families_write_calls_their_own_ways():
    choice = await whole(f'{{"name": "weather", "parameters": {PARIS}}}', template=LLAMA3_TOOLS, tools=TOOLS)
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "weather", "arguments": PARIS}
    text = f'[TOOL_CALLS] [{{"name": "weather", "arguments": {PARIS}}}]'
    choice = await whole(text, template=MISTRAL, tools=TOOLS, marks=True)
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "weather", "arguments": PARIS}


def test_tools_reach_every_template():
    shown = json.dumps({**WEATHER, "function": {"name": "weather", "description": "d", "parameters": CITY}})
    assert f"[AVAILABLE_TOOLS] [{shown}" in prompt_of(MISTRAL)
    assert prompt_of().startswith("<|im_start|>system\n# Tools")
    assert f"<tools>\n{shown}\n" in prompt_of()
    assert '"tools"' not in prompt_of(tools=None)


@pytest.mark.parametrize(("template", "shown"), [(None, True), (LLAMA3_TOOLS, False)])
def test_uncallable_tools_are_still_shown(template: str | None, shown: bool):
    assert ("weather" in prompt_of(template, tool_choice="none").replace("the weather", "")) == shown
    constraint = request_of(template, tool_choice="none").constraint
    assert (constraint is not None) == shown
    without = prompt_of(template, tool_choice="none", grammars=False)
    assert "weather" not in without.replace("the weather", "")


CALLED: list[dict[str, Any]] = [
    *HELLO,
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "Hm.",
        "tool_calls": [
            {"id": "call_abc", "type": "function", "function": {"name": "weather", "arguments": PARIS}}
        ],
    },
    {"role": "tool", "tool_call_id": "call_abc", "content": "sunny"},
]


def test_history_follows_the_family():
    assert f'{{"name": "weather", "parameters": {PARIS}}}' in prompt_of(LLAMA3_TOOLS, messages=CALLED)
    assert A_CALL in prompt_of(THINKING, messages=CALLED)
    assert f"<think>\nHm.\n</think>\n\n{A_CALL}" in prompt_of(REASONING, messages=CALLED)
    plain = prompt_of(messages=CALLED)
    assert f"assistant\n{A_CALL}<|im_end|>" in plain
    assert "user\n<tool_response>\nsunny\n</tool_response><|im_end|>" in plain
    mistral = prompt_of(MISTRAL, messages=CALLED)
    id = mistral.partition('"id": "')[2].partition('"')[0]
    assert len(id) == 9
    assert f'"call_id": "{id}"' in mistral


def test_arguments_may_be_an_object():
    call = {"id": "call_abc", "function": {"name": "weather", "arguments": json.loads(PARIS)}}
    history = [HELLO[0], {"role": "assistant", "tool_calls": [call]}, CALLED[-1]]
    for template in (LLAMA3_TOOLS, THINKING, MISTRAL):
        assert PARIS in prompt_of(template, messages=history)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": "sometimes"}, "tool_choice"),
    ({"tools": [WEATHER, WEATHER]}, "tools.1.function.name"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
    ({"tools": [{"type": "custom", "custom": {"name": "a b"}}]}, "tools.0.custom.name"),
    ({"tools": [{"type": "web_search", "function": {"name": "a"}}]}, "tools.0.type"),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]},
        "tools.0.function.parameters.type",
    ),
    ({"tools": TOOLS, "grammar": 'root ::= "a"'}, "grammar"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"function_call": {"name": "f"}}, "function_call"),
    ({"reasoning_format": "loud"}, "reasoning_format"),
]
UNKEPT: dict[str, Any] = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "not": {"type": "null"}}},
}


async def refusal(**fields: Any) -> dict[str, Any]:
    one = Call(setting(Script(), FakeVocabulary(), grammars=True), body={"messages": HELLO, **fields})
    await asyncio.wait_for(one.run(), 10)
    assert one.status == 400
    validate("Error", one.json)
    return one.json["error"]


@pytest.mark.parametrize(
    ("fields", "param"), REFUSED, ids=lambda value: value if isinstance(value, str) else ""
)
async def test_unsupported_tool_field_is_refused(fields: dict[str, Any], param: str):
    assert str((await refusal(**fields))["param"]).startswith(param)


async def test_uncompilable_strict_schema_is_refused():
    strict = {"type": "function", "function": {**UNKEPT["function"], "strict": True}}
    for fields in ({}, {"tool_choice": "required"}, {"response_format": {"type": "json_object"}}):
        error = await refusal(tools=[WEATHER, strict], **fields)
        assert error["param"].startswith("tools.1.function.parameters")


def allows(request: GenerationRequest, text: str) -> bool:
    assert request.constraint
    state = request.constraint()
    for token in FakeVocabulary().tokenize(text + "<|im_end|>", special=True):
        if not state.allows(token):
            return False
        state.accept(token)
    return True


def test_tool_choice_limits_the_reply():
    auto, required = asked(), asked(tool_choice="required", parallel_tool_calls=True)
    named = asked(tool_choice={"type": "function", "function": {"name": "clock"}})
    one = {"type": "function", "function": {"name": "clock"}}
    allowed = asked(
        tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [one]}},
        parallel_tool_calls=True,
    )
    formed = asked(response_format={"type": "json_object"})
    silent = asked(tool_choice="none")
    both = f"{A_CALL}\n{ANOTHER}"
    for text, passed in {
        "Hello": (True, False, False, False, False, True),
        '{"a": 1}': (True, False, False, False, True, True),
        A_CALL: (True, True, False, False, True, False),
        ANOTHER: (True, True, True, True, True, False),
        both: (True, True, False, False, True, False),
        f"{ANOTHER}\n{ANOTHER}": (True, True, False, True, True, False),
        A_CALL.replace("city", "town"): (False, False, False, False, False, False),
    }.items():
        requests = (auto, required, named, allowed, formed, silent)
        assert tuple(allows(request, text) for request in requests) == passed, text
