"""Shorten a conversation: the model writes a summary, which replaces it from then on.

POST /v1/responses/compact does so on request, `context_management` when a prompt gets too long.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, TypeAlias

import orjson
from pydantic import Field

from server.api.answer import Answer
from server.api.chat.chat_request import ChatRequest
from server.api.choices import ReplyChoice
from server.api.responses.response_events import new_id
from server.api.responses.response_items import Item
from server.api.responses.response_request import ResponseRequest
from server.api.sealed import sealed_summary
from server.api.served import Served
from server.api.stages.prompted import Prompted
from server.errors import BackendError

Json: TypeAlias = dict[str, Any]

WISH = (
    "Summarise the conversation above, so that you can go on with it from your summary alone: what the user "
    "wants, what was found out and done, what was decided, the names that matter, and what is left to do. "
    "Write the summary and nothing else."
)
"""The last message of the conversation that is to be shortened."""


class CompactRequest(ResponseRequest):
    """POST /v1/responses/compact: a request whose conversation is summarised instead of answered."""

    input: str | Annotated[list[Item], Field(fail_fast=True)] = Field(default_factory=list[Item])

    def contradiction(self) -> tuple[str, str] | None:
        if not self.input and self.previous_response_id is None:
            return "input", "required, or previous_response_id"
        return super().contradiction()


def with_wish(chat: Json) -> Json:
    """Return the body of the chat completion that summarises the conversation of another one."""
    left_out = ("tools", "tool_choice", "response_format", "parallel_tool_calls", "generate", "stream")
    kept = {name: value for name, value in chat.items() if name not in left_out}
    wish = {"role": "user", "content": WISH}
    return {**kept, "messages": [*chat["messages"], wish], "logprobs": False, "top_logprobs": None}


def compaction_item(summary: str) -> Json:
    """Return the item that replaces a conversation."""
    return {"id": new_id("cmp"), "type": "compaction", "encrypted_content": sealed_summary(summary)}


class Compaction(Answer):
    """The answer to a request for a shorter conversation; never a stream."""

    def __init__(self, served: Served, chat: ChatRequest, asked: Prompted, said: Sequence[Json] = ()) -> None:
        """Submit the prompt.

        Args:
            served: the server.
            chat: the chat completion that writes the summary.
            asked: its prompt.
            said: the user's messages, as items.
        """
        super().__init__(new_id("resp"), served, chat, [asked])
        self._said = said
        self._choice = self._choices[0]

    @property
    def item(self) -> Json:
        """Return the item that replaces the conversation, once the reply has ended.

        Raises:
            BackendError: The model has written no summary.
        """
        self._choice.portion()
        if not (summary := self._choice.message.content.strip()):
            raise BackendError("the model wrote no summary: the conversation stays as it is")
        return compaction_item(summary)

    def _whole_json(self) -> bytes:
        stats = self._choice.stats()
        usage = {
            "input_tokens": stats.n_prompt,
            "input_tokens_details": {
                "cached_tokens": stats.n_cached,
                "cache_write_tokens": stats.n_prompt - stats.n_cached,
            },
            "output_tokens": stats.n_predicted,
            "output_tokens_details": {"reasoning_tokens": self._choice.n_reasoning},
            "total_tokens": stats.n_prompt + stats.n_predicted,
        }
        about = {"id": self._id, "object": "response.compaction", "created_at": int(time.time())}
        return orjson.dumps({**about, "output": [*self._said, self.item], "usage": usage})

    def _opening_events(self) -> Iterator[bytes]:
        yield from ()

    def _new_events(self, choice: ReplyChoice) -> Iterator[bytes]:
        yield from ()

    def _closing_events(self) -> Iterator[bytes]:
        yield from ()
