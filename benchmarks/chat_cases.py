"""Parser cases of llama.cpp's tests/test-chat.cpp, read from its source as it lies in DIR. Pure.

That file builds cases as chains of calls over constants. What is evaluated here is no C++: strings, braces,
named constants, assignments of members, and the few functions that make messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

_TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|/\*.*?\*/)
    |R"(?P<mark>[^()\s\\]*)\((?P<raw>.*?)\)(?P=mark)"
    |"(?P<text>(?:[^"\\]|\\.)*)"
    |(?P<word>[A-Za-z_][\w]*(?:::\w+)*)
    |(?P<number>\d[\w.]*)
    |(?P<sign>.)""",
    re.DOTALL | re.VERBOSE,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}
_FIELDS = ("role", "content", "content_parts", "tool_calls", "reasoning_content", "tool_name", "tool_call_id")
_LOOP = re.compile(r"for \(const \w+ [&*] (\w+)\s*:\s*\{([^}]*)\}")


@dataclass(frozen=True, slots=True)
class Case:
    """A reply and what it says. settings: the arguments of the chain's other calls by their name."""

    template: str
    line: int
    reply: str
    settings: dict[str, Any]
    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str, str], ...] = ()

    @property
    def partial(self) -> bool:
        return bool(self.settings.get("is_partial"))

    @property
    def continues(self) -> bool:
        """The last message is the reply's beginning."""
        return "continue_final_message" in self.settings

    @property
    def messages(self) -> list[dict[str, Any]]:
        """In OpenAI's shape; none: any question."""
        return [_shaped(message) for message in self.settings.get("messages") or ()]

    @property
    def tools(self) -> list[dict[str, Any]]:
        """In OpenAI's shape."""
        made: list[dict[str, Any]] = []
        for name, description, parameters in self.settings.get("tools") or ():
            function = {"name": name, "description": description, "parameters": json.loads(parameters)}
            made.append({"type": "function", "function": function})
        return made


@dataclass(slots=True)
class _Source:
    """Tokens as (kind, value, line), and a place in them."""

    tokens: list[tuple[str, str, int]]
    at: int = 0
    names: dict[str, Any] = field(default_factory=dict[str, Any])

    def peek(self, ahead: int = 0) -> str:
        return self.tokens[self.at + ahead][1] if self.at + ahead < len(self.tokens) else ""

    def kind(self, ahead: int = 0) -> str:
        return self.tokens[self.at + ahead][0] if self.at + ahead < len(self.tokens) else ""

    def take(self) -> str:
        self.at += 1
        return self.tokens[self.at - 1][1]

    def items(self, close: str) -> list[Any]:
        """Values up to the bracket that closes."""
        found: list[Any] = []
        while self.peek() != close:
            if self.peek() == ",":
                self.take()
            else:
                found.append(self.value())
        self.take()
        return found

    def value(self) -> Any:
        value = self._primary()
        while self.peek() in ("+", "."):
            value = value + self._primary() if self.take() == "+" else value[self.take()]
        return value

    def _primary(self) -> Any:
        if self.kind() in ("text", "raw"):
            parts = [self.take()]
            while self.kind() in ("text", "raw"):
                parts.append(self.take())
            return "".join(parts)
        if self.peek() == "{":
            self.take()
            return self.items("}")
        if self.kind() == "number":
            return self.take()
        return self._named(self.take())

    def _named(self, word: str) -> Any:
        if self.peek() in ("(", "{"):
            bracket = self.take()
            arguments = self.items(")" if bracket == "(" else "}")
            return _MADE[word](*arguments) if word in _MADE else arguments[0] if arguments else ""
        if word in self.names:
            return self.names[word]
        if word in ("true", "false"):
            return word == "true"
        if word.isupper() or word.startswith("COMMON_"):
            return word
        raise ValueError(word)


def _message(
    content: str = "", reasoning: str = "", name: str = "", arguments: str = "", id: str = ""
) -> Any:
    calls = [[name, arguments, id]] if name or id else []
    return _full(["assistant", content, [], calls, reasoning, "", ""])


def _full(fields: Sequence[Any]) -> dict[str, Any]:
    return {**dict.fromkeys(_FIELDS, ""), **dict(zip(_FIELDS, fields, strict=False))}


def _several(reasoning: str, content: str, calls: Sequence[Sequence[str]]) -> Any:
    return _full(["assistant", content, [], [[*call, ""][:3] for call in calls], reasoning])


def _call(name: str, arguments: str) -> Any:
    return _message("", "", name, arguments)


def _call_with_reasoning(name: str, arguments: str, reasoning: str) -> Any:
    return _message("", reasoning, name, arguments)


def _call_with_content(text: str, name: str, arguments: str) -> Any:
    return _message(text, "", name, arguments)


def _reasoning_and_call(reasoning: str, name: str, arguments: str) -> Any:
    return _message("", reasoning, name, arguments)


_MADE: dict[str, Any] = {
    "simple_assist_msg": _message,
    "message_with_tool_calls": _call,
    "message_with_tool_calls_and_reasoning": _call_with_reasoning,
    "message_with_reasoning_content_and_multiple_tool_calls": _several,
    "message_with_content_and_tool_call": _call_with_content,
    "message_with_reasoning_and_tool_call": _reasoning_and_call,
}


def _shaped(message: dict[str, Any]) -> dict[str, Any]:
    """A message with those fields that say something."""
    shaped = {key: message[key] for key in ("role", "content")}
    for key in ("reasoning_content", "tool_call_id"):
        if message[key] or (key == "reasoning_content" and message["role"] == "assistant"):
            shaped[key] = message[key]
    if message["tool_calls"]:
        shaped["tool_calls"] = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for name, arguments, id in message["tool_calls"]
        ]
    return shaped


def _tokens(source: str) -> list[tuple[str, str, int]]:
    found: list[tuple[str, str, int]] = []
    line = 1
    for match in _TOKEN.finditer(source):
        kind = match.lastgroup or ""
        kind = "raw" if match["raw"] is not None else kind
        value = match[kind] if kind in match.re.groupindex else ""
        if kind == "text":
            value = re.sub(r"\\(.)", lambda one: _ESCAPES.get(one[1], one[1]), value, flags=re.DOTALL)
        if kind != "skip":
            found.append((kind, value, line))
        line += match[0].count("\n")
    return found


def cases(source: str) -> Iterator[Case]:
    """Every chain of the file that can be read. Raises nothing: what is foreign is left out."""
    at = _Source(_tokens(source))
    testers: dict[str, list[str]] = {}
    paths = _looped(source)
    while at.at < len(at.tokens):
        word = at.take()
        if at.tokens[at.at - 1][0] != "word":
            continue
        if at.peek() == "=" and at.peek(1) == "peg_tester":
            testers[word] = _paths(at, paths)
        elif word in testers and at.peek() == "." and at.peek(1) == "test":
            yield from _chain(at, testers[word])
        else:
            _define(at, word)


def _looped(source: str) -> dict[str, list[str]]:
    """Paths that a loop's variable runs through, under the parameter of a function that is given it, too."""
    paths = {name: re.findall(r'"([^"]+)"', listed) for name, listed in _LOOP.findall(source)}
    for variable in re.findall(r"_parser\((\w+), detailed_debug\);", source):
        paths["template_path"] = paths.get(variable, [])
    return paths


def _paths(at: _Source, paths: dict[str, list[str]]) -> list[str]:
    at.at += 3
    kind, value = at.kind(), at.take()
    return [value] if kind == "text" else paths.get(value, [])


def _define(at: _Source, word: str) -> None:
    """NAME = value; NAME{…}; NAME.member = value;"""
    place = at.at
    try:
        if at.peek() == "=" and at.peek(1) != "=":
            at.take()
            at.names[word] = at.value()
        elif at.peek() == "{" and at.tokens[place - 2][1] in ("common_chat_tool", "common_chat_msg"):
            at.take()
            made = at.items("}")
            at.names[word] = made if at.tokens[place - 2][1] == "common_chat_tool" else _full(made)
        elif at.peek() == ";" and at.tokens[place - 2][1] == "common_chat_msg":
            at.names[word] = _full([])
        elif at.peek() == "." and at.peek(2) == "=" and isinstance(at.names.get(word), dict):
            member = at.peek(1)
            at.at += 3
            at.names[word] = {**at.names[word], member: at.value()}
        else:
            return
    except (ValueError, TypeError, IndexError, KeyError):
        at.at = place


def _chain(at: _Source, templates: Sequence[str]) -> Iterator[Case]:
    """.test(reply).setting(value)….run()"""
    line = at.tokens[at.at][2]
    chain: list[tuple[str, list[Any]]] = []
    while at.peek() == ".":
        at.take()
        word = at.take()
        at.take()
        chain.append((word, at.items(")")))
    settings: dict[str, Any] = {word: values[0] if values else True for word, values in chain}
    expected = settings.pop("expect", None) or _full([])
    content = settings.pop("expect_content", expected["content"])
    reasoning = settings.pop("expect_reasoning", expected["reasoning_content"])
    calls = settings.pop("expect_tool_calls", expected["tool_calls"] or [])
    told = tuple((name, arguments, str(id or "")) for name, arguments, id in calls)
    for template in templates:
        yield Case(template, line, settings["test"], settings, content, reasoning, told)
