"""Replies that chat templates write themselves: what a template shows of an earlier turn, its model writes.

Each template renders a question with an assistant's turn: calls of tools, with arguments of all types, with
content and thoughts or without. What it wrote for that turn is the reply to be read.
"""

# ruff: noqa: RUF001 - some marks have wide signs
from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from jinja2 import TemplateError
from jinja2.sandbox import SandboxedEnvironment

from benchmarks.written_values import VALUES
from server.cache.radix import common_prefix

_GENERATION = re.compile(r"{%-? *(?:end)?generation *-?%}")
_BROKEN = re.compile(r"(?:<[^<>\s]*)?$")
_MARK = re.compile(r"<[^<>\s]+>")
_ENDS = (
    "<|eom_id|>",
    "<|tool_response>",
    "<|END_OF_TURN_TOKEN|>",
    "<｜end▁of▁sentence｜>",
    "<｜hy_eos:opensource｜>",
)
"""What ends a turn in vocabularies, beside what a plain turn's rendering ends with."""
_WORDS = ("SAID", "THOUGHT")
PROPERTIES: dict[str, Any] = {
    "text": {"type": "string"},
    "number": {"type": "integer"},
    "yes": {"type": "boolean"},
    "list": {"type": "array", "items": {"type": "string"}},
    "thing": {"type": "object", "properties": {"k": {"type": "number"}}},
}
ARGUMENTS: dict[str, Any] = {
    "text": 'one <b>\n"two"',
    "number": 17,
    "yes": True,
    "list": ["a", "b"],
    "thing": {"k": 1.5},
}


Given: TypeAlias = tuple[tuple[str, dict[str, Any]], ...]
"""Names of functions, with arguments."""


def _tool(name: str, properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    parameters |= {"additionalProperties": False}
    return {
        "type": "function",
        "function": {"name": name, "description": "Does it.", "parameters": parameters},
    }


TOOLS = [
    _tool("first_tool", PROPERTIES),
    _tool("other_tool", {"text": PROPERTIES["text"]}),
    _tool("bare_tool", {}),
]
CALLS: Given = (
    ("first_tool", ARGUMENTS),
    ("other_tool", {"text": "x"}),
    ("bare_tool", {}),
)


@dataclass(frozen=True, slots=True)
class WrittenReply:
    """calls: names and arguments; functions: schemas by name; head: the prompt's end before the reply."""

    head: str
    text: str
    calls: Given
    functions: Mapping[str, dict[str, Any]]
    content: str = ""
    reasoning: str = ""


class Renderer:
    """A template, rendered plainly: whole turns, and as it is, whatever duo makes of messages."""

    def __init__(self, source: str) -> None:
        environment = SandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _tojson
        functions: dict[str, Any] = environment.globals
        functions |= {"raise_exception": _refuse, "strftime_now": lambda _: "1 January 2026"}  # pyright: ignore[reportUnknownLambdaType]
        self._template = environment.from_string(_GENERATION.sub("", source))

    def render(
        self, turns: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], *, thinks: bool, prompt: bool
    ) -> str:
        variables = {"enable_thinking": thinks, "thinking": thinks, "bos_token": "<s>", "eos_token": "</s>"}
        return self._template.render(messages=turns, tools=tools, add_generation_prompt=prompt, **variables)


def _tojson(value: Any, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def written_replies(source: str) -> Iterator[WrittenReply]:
    """Those that the template shows; one that loses calls or refuses them shows none. Arguments are given as
    objects if that is what it takes. First several calls, content and thoughts, then a value of each type."""
    renderer = Renderer(source)
    for n_calls in (1, 2, 3):
        for said in (("", ""), ("SAID", ""), ("", "THOUGHT"), ("SAID", "THOUGHT")):
            yield from _written_somehow(renderer, CALLS[:n_calls], TOOLS, *said)
    for schema, values in VALUES.values():
        tool = _tool("value_tool", {"value": schema})
        for value in values:
            yield from _written_somehow(renderer, (("value_tool", {"value": value}),), [tool])


def _written_somehow(
    renderer: Renderer, calls: Given, tools: Sequence[dict[str, Any]], content: str = "", reasoning: str = ""
) -> list[WrittenReply]:
    for as_text in (False, True):
        found = _written(renderer, _turn(calls, content, reasoning, as_text=as_text), calls, tools)
        if found:
            return [found]
    return []


def _turn(calls: Given, content: str, reasoning: str, *, as_text: bool) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": "assistant", "content": content}
    if reasoning:
        turn["reasoning_content"] = reasoning
    turn["tool_calls"] = [
        {
            "id": f"abcdefg1{i}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(given) if as_text else given},
        }
        for i, (name, given) in enumerate(calls)
    ]
    return turn


def _ended(text: str, tail: str, calls: Given) -> str:
    """The text up to what ends a turn; tail: what follows the content of a plain one."""
    text = text.removesuffix(tail)
    marks = (*_MARK.findall(tail)[-1:], *_ENDS)
    for mark in marks:
        before, found, _ = text.partition(mark)
        text = before if found and any(name in before for name, _ in calls) else text
    return text


def _written(
    renderer: Renderer, turn: dict[str, Any], given: Given, tools: Sequence[dict[str, Any]]
) -> WrittenReply | None:
    question, plain = {"role": "user", "content": "?"}, {"role": "assistant", "content": "PLAIN"}
    thinks = "reasoning_content" in turn
    try:
        prompt = renderer.render([question], tools, thinks=thinks, prompt=True)
        whole, other = (
            renderer.render([question, one], tools, thinks=thinks, prompt=False) for one in (turn, plain)
        )
    except Exception:  # a template is foreign code: it may raise anything
        return None
    n = common_prefix(prompt, whole)
    n -= len(_BROKEN.findall(whole[:n])[0])
    text = _ended(whole[n:], other.rpartition("PLAIN")[2], given)
    calls = tuple(call for call in given if call[0] in text)
    told = [word if word in text else "" for word in _WORDS]
    functions = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    return WrittenReply(whole[:n], text, calls, functions, *told) if calls else None
