"""Answer a chat completion with all its choices, whole or in chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from server.api.chat.chat_request import ChatRequest
from server.api.chat.custom_calls import CustomCalls, CustomCallStart, CustomInput, as_plain, call_json
from server.api.choices import Portion, ReplyChoice
from server.api.completing import CompletionAnswer
from server.api.native_form import native_result
from server.api.partial_answer import Json, PartialAnswer, recipe_of
from server.api.services import Services
from server.api.stages.prompted import Prompted
from server.text.message import Arguments, CallStart, Content, Piece, Reasoning, folded


class ChatAnswer(CompletionAnswer):
    """An answer in the format of OpenAI's chat completions."""

    _prefix = "chatcmpl"
    _objects = ("chat.completion", "chat.completion.chunk")

    def __init__(
        self,
        services: Services,
        body: ChatRequest,
        prompts: Sequence[Prompted],
        begun: PartialAnswer | None = None,
    ) -> None:
        super().__init__(services, body, prompts, begun)
        self._body = body
        self._custom = frozenset(tool.function.name for tool in body.tools or () if tool.type == "custom")
        self._calls = [CustomCalls(self._custom) for _ in self._choices]
        if body.service_tier is not None:
            self._about["service_tier"] = body.service_tier

    def recipe(self, given: Json) -> Json | None:
        told = recipe_of(self._id, int(self._about["created"]), self._prompts)
        return told and {"kind": "chat", "body": given, **told}

    def _next_portion(self, choice: ReplyChoice) -> Portion:
        portion = choice.portion()
        if not self._custom:
            return portion
        pieces = self._calls[choice.index].feed(portion.pieces, ended=choice.reason is not None)
        return replace(portion, pieces=pieces)

    def _whole_reply(self, choice: ReplyChoice, pieces: Sequence[Piece]) -> dict[str, Any]:
        """Return a choice's message, made of all pieces; content is null if it has only tool calls."""
        reply = folded(map(as_plain, pieces))
        content = None if reply.calls and not reply.content else reply.content
        extras = dict(reply.extras)
        if self._custom and reply.calls:
            extras["tool_calls"] = [call_json(call, self._custom) for call in reply.calls]
        return {"message": {"role": "assistant", "content": content, "refusal": None, **extras}}

    def _extra_fields(self, choice: ReplyChoice) -> dict[str, Any]:
        """Return `__verbose`, the reply in llama-server's own format, if the request asks for it."""
        if not (self._services.verbose if self._body.verbose is None else self._body.verbose):
            return {}
        [prompt] = self._prompts
        told = native_result(self._services, self._body, prompt.requests[choice.index], choice)
        return {"__verbose": {"content": choice.message.content, **told}}

    def _delta(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        return {"delta": _delta(pieces[0]) if pieces else {}}

    def _opening_events(self) -> Iterator[bytes]:
        role = {"delta": {"role": "assistant", "content": None}}
        for choice in self._choices:
            yield self._chunk_event([self._choice_json(choice.index, role, Portion())], **self._no_usage)


def _delta(piece: Piece) -> dict[str, Any]:
    match piece:
        case Content(text):
            return {"content": text}
        case Reasoning(text):
            return {"reasoning_content": text}
        case CustomCallStart(index, id, name):
            custom = {"name": name, "input": ""}
            return {"tool_calls": [{"index": index, "id": id, "type": "custom", "custom": custom}]}
        case CustomInput(index, text):
            return {"tool_calls": [{"index": index, "custom": {"input": text}}]}
        case CallStart(index, id, name):
            function = {"name": name, "arguments": ""}
            return {"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]}
        case Arguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
