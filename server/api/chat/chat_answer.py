"""One answer to a chat completion request: all its choices, whole or in chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from server.api.chat.chat_chunks import ChatChunks, message_json
from server.api.chat.chat_request import ChatRequest
from server.api.choices import Portion, ReplyChoice
from server.api.completing import CompletionAnswer, beside
from server.api.engine_requests import Prompted
from server.api.served import Served
from server.text.message import folded


class ChatAnswer(CompletionAnswer):
    _object = "chat.completion"

    def __init__(
        self, served: Served, body: ChatRequest, asked: Prompted, choices: Sequence[ReplyChoice]
    ) -> None:
        super().__init__("chatcmpl", served, body, choices)
        self._asked = asked

    @cached_property
    def _writer(self) -> ChatChunks:
        return ChatChunks(self._envelope, len(self._choices), usage=self._body.with_usage)

    def _whole_choice(self, choice: ReplyChoice, portion: Portion) -> dict[str, Any]:
        message = message_json(folded(portion.pieces))
        return {"message": message, "logprobs": portion.logprobs, **beside(portion)}

    def _opening(self) -> Iterator[bytes]:
        for choice in self._choices:
            yield self._writer.role(choice.index)

    def _remember(self) -> None:
        self._asked.remember(self._history, self._choices)
