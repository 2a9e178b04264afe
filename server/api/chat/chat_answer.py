"""The answer to a chat completion request: all its choices, whole or in chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from server.api.chat.chat_request import ChatRequest
from server.api.choices import Portion, ReplyChoice
from server.api.completing import CompletionAnswer
from server.api.engine_requests import Prompted
from server.api.native_form import native_result
from server.api.served import Served
from server.text.message import Arguments, CallBegun, Content, Piece, Reasoning, folded


class ChatAnswer(CompletionAnswer):
    _prefix = "chatcmpl"
    _objects = ("chat.completion", "chat.completion.chunk")

    def __init__(self, served: Served, body: ChatRequest, prompts: Sequence[Prompted]) -> None:
        super().__init__(served, body, prompts)
        self._body = body

    def _whole_reply(self, choice: ReplyChoice, pieces: Sequence[Piece]) -> dict[str, Any]:
        """content is null in a reply of tool calls only."""
        reply = folded(pieces)
        content = None if reply.calls and not reply.content else reply.content
        return {"message": {"role": "assistant", "content": content, "refusal": None, **reply.extras}}

    def _beside(self, choice: ReplyChoice) -> dict[str, Any]:
        """The reply in llama-server's own form, where that is asked for."""
        if not (self._served.verbose if self._body.verbose is None else self._body.verbose):
            return {}
        [prompt] = self._prompts
        told = native_result(self._served, self._body, prompt.requests[choice.index], choice)
        return {"__verbose": {"content": choice.message.content, **told}}

    def _delta(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        return {"delta": _delta(pieces[0]) if pieces else {}}

    def _opening(self) -> Iterator[bytes]:
        role = {"delta": {"role": "assistant", "content": None}}
        for choice in self._choices:
            yield self._chunk([self._choice(choice.index, role, Portion())], **self._no_usage)


def _delta(piece: Piece) -> dict[str, Any]:
    match piece:
        case Content(text):
            return {"content": text}
        case Reasoning(text):
            return {"reasoning_content": text}
        case CallBegun(index, id, name):
            function = {"name": name, "arguments": ""}
            return {"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]}
        case Arguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
