"""Conversations of every shape that chat templates have to deal with, as OpenAI's clients send them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Tells the {name} of a place.",
            "parameters": {
                "type": "object",
                "properties": {
                    "place": {"type": "string", "description": "its name"},
                    "days": {"type": "integer", "description": "how many days ahead"},
                },
                "required": ["place"],
            },
        },
    }
    for name in ("weather", "traffic")
]


@dataclass(frozen=True, slots=True)
class Conversation:
    """begun: the field of the last message that the reply continues, if it does."""

    name: str
    messages: Sequence[Message]
    tools: Sequence[dict[str, Any]] = ()
    variables: Mapping[str, Any] = field(default_factory=dict[str, Any])
    begun: str | None = None

    def missing(self, prompt: str) -> list[str]:
        """Texts that a prompt does not show in order. Thoughts are not among them, since templates drop them;
        results may follow each call, or all calls; a system message and tools may be anywhere."""
        tools = [tool["function"]["description"] for tool in self.tools]
        anywhere = [
            *tools,
            *(text for one in self.messages if one["role"] in OF_SYSTEM for text in _texts(one)),
        ]
        lost = [text for text in anywhere if _found(prompt, text, 0) is None]
        return [*lost, *min((_lost(prompt, order) for order in (self._groups, self._interleaved)), key=len)]

    @property
    def thoughts(self) -> list[str]:
        return [one["reasoning_content"] for one in self.messages if "reasoning_content" in one]

    @property
    def _groups(self) -> list[list[str]]:
        """Texts in their order; those of one list in any."""
        begun = [[self.thoughts[-1]]] if self.begun == "reasoning_content" else []
        said = [one for one in self.messages if one["role"] not in OF_SYSTEM]
        return [*(group for one in said for group in _groups(one)), *begun]

    @property
    def _interleaved(self) -> list[list[str]]:
        """Each call with its result after it."""
        results = {one["tool_call_id"]: _texts(one) for one in self.messages if one["role"] == "tool"}
        groups: list[list[str]] = []
        for message in self.messages:
            if message["role"] not in (*OF_SYSTEM, "tool"):
                results_of_calls = [results.get(call["id"], []) for call in message.get("tool_calls", ())]
                for group, result in zip_longest(_groups(message), results_of_calls, fillvalue=_NONE):
                    groups += [group, result]
        return groups


_NONE: list[str] = []
OF_SYSTEM = ("system", "developer")


def _texts(message: Message) -> list[str]:
    content: Any = message.get("content") or []
    return [content] if isinstance(content, str) else [part["text"] for part in content]


def _call_texts(call: dict[str, Any]) -> list[str]:
    return [call["function"]["name"], *map(str, json.loads(call["function"]["arguments"]).values())]


def _groups(message: Message) -> list[list[str]]:
    """A template may write the content of calls before them, or behind."""
    calls = [_call_texts(call) for call in message.get("tool_calls", ())]
    content = _texts(message)
    return [[*content, *calls[0]], *calls[1:]] if calls else [[text] for text in content]


def _lost(prompt: str, groups: Sequence[Sequence[str]]) -> list[str]:
    lost, at = list[str](), 0
    for group in groups:
        ends = {text: _found(prompt, text, at) for text in group}
        lost += [text for text, end in ends.items() if end is None]
        at = max((end for end in ends.values() if end is not None), default=at)
    return lost


def _found(prompt: str, text: str, at: int) -> int | None:
    """Where the first place of the text, by itself or in a JSON string, ends."""
    forms = (text.strip(), json.dumps(text.strip())[1:-1], json.dumps(text.strip(), ensure_ascii=False)[1:-1])
    return min((prompt.find(form, at) + len(form) for form in forms if form in prompt[at:]), default=None)


SYSTEM: Message = {"role": "system", "content": "Answer in one sentence."}
ASKED: Message = {"role": "user", "content": "What is it like in Oslo & Rome?"}
ANSWER: Message = {"role": "assistant", "content": "It rains in one of them."}
AGAIN: Message = {"role": "user", "content": "And tomorrow, then?"}
THANKS: Message = {"role": "user", "content": "Thank you kindly."}


def _thought(message: Message, thought: str) -> Message:
    return {**message, "reasoning_content": thought}


def _call(*calls: tuple[str, dict[str, Any]], content: str | None = None, first: int = 0) -> Message:
    """Calls of these functions with their arguments; their ids are numbered from `first`."""
    written = [
        {"id": f"call{n:05d}", "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
        for n, (name, given) in enumerate(calls, first)
    ]
    return {"role": "assistant", "content": content, "tool_calls": written}


def _result(text: str, n: int = 0) -> Message:
    return {"role": "tool", "tool_call_id": f"call{n:05d}", "content": text}


def _parts(message: Message, *texts: str) -> Message:
    return {**message, "content": [{"type": "text", "text": text} for text in texts]}


OSLO = ("weather", {"place": "Oslo", "days": 2})
ROME = ("traffic", {"place": "Rome <I>"})
ONCE: list[Message] = [SYSTEM, ASKED, _call(OSLO), _result("rain, 7 degrees")]
TWICE: list[Message] = [*ONCE, _call(ROME, first=1), _result("dense", 1)]

CONVERSATIONS = (
    Conversation("plain", [ASKED]),
    Conversation("system", [SYSTEM, ASKED]),
    Conversation("turns", [SYSTEM, ASKED, ANSWER, AGAIN, {**ANSWER, "content": "It snows."}, THANKS]),
    Conversation("developer", [{**SYSTEM, "role": "developer"}, ASKED]),
    Conversation("user twice", [SYSTEM, ASKED, AGAIN, ANSWER, THANKS]),
    Conversation("system later", [ASKED, ANSWER, {**SYSTEM, "content": "Be brief now."}, THANKS]),
    Conversation("parts", [SYSTEM, _parts(ASKED, "Look at this:", "Oslo and Rome."), ANSWER, THANKS]),
    Conversation("tools", [SYSTEM, ASKED], TOOLS),
    Conversation("tools only", [ASKED, ANSWER, AGAIN], TOOLS),
    Conversation("call", ONCE, TOOLS),
    Conversation("calls", TWICE, TOOLS),
    Conversation("calls answered", [*TWICE, ANSWER, THANKS], TOOLS),
    Conversation(
        "parallel calls",
        [SYSTEM, ASKED, _call(OSLO, ROME), _result("rain, 7 degrees"), _result("dense", 1), ANSWER]
        + [THANKS],
        TOOLS,
    ),
    Conversation("call with text", [ASKED, _call(OSLO, content="Let me see."), _result("rain")], TOOLS),
    Conversation("result parts", [*ONCE[:-1], _parts(_result(""), "rain,", "7 degrees")], TOOLS),
    Conversation("thoughts", [SYSTEM, ASKED, _thought(ANSWER, "Which of them?"), THANKS]),
    Conversation(
        "thoughts and calls",
        [
            ASKED,
            _thought(_call(OSLO), "Oslo first."),
            _result("rain"),
            _thought(_call(ROME, first=1), "Rome."),
        ]
        + [_result("dense", 1)],
        TOOLS,
    ),
    Conversation("thinking off", [SYSTEM, ASKED], variables={"enable_thinking": False}),
    Conversation("begun", [SYSTEM, ASKED, {**ANSWER, "content": "It is certainly"}], begun="content"),
    Conversation(
        "thought begun",
        [ASKED, _thought({"role": "assistant", "content": ""}, "They ask")],
        begun="reasoning_content",
    ),
)
