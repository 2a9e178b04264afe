"""Shorten a conversation: the model writes a summary that replaces the conversation from then on.

POST /v1/responses/compact always does so. A request with `context_management` does so if its prompt is too
long.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

import orjson
from pydantic import Field

from server.api.chat.chat_request import ChatRequest
from server.api.chat.summary import Summary
from server.api.responses.response_events import new_id
from server.api.responses.response_items import Item
from server.api.responses.response_request import ResponseRequest
from server.api.sealed import sealed_summary
from server.api.services import Services
from server.api.stages.prompted import Prompted

Json: TypeAlias = dict[str, Any]


class CompactRequest(ResponseRequest):
    """POST /v1/responses/compact: a request to summarise the conversation instead of answering it."""

    input: str | Annotated[list[Item], Field(fail_fast=True)] = Field(default_factory=list[Item])

    def contradiction(self) -> tuple[str, str] | None:
        if not self.input and self.previous_response_id is None:
            return "input", "required, or previous_response_id"
        return super().contradiction()


def compaction_item(summary: str) -> Json:
    """Return an item that holds this summary, encoded, and replaces the conversation before it."""
    return {"id": new_id("cmp"), "type": "compaction", "encrypted_content": sealed_summary(summary)}


class Compaction(Summary):
    """An answer with a shorter conversation: given items, and a summary that the model writes."""

    def __init__(
        self, services: Services, chat: ChatRequest, asked: Prompted, said: Sequence[Json] = ()
    ) -> None:
        """Submit the prompt.

        Args:
            services: The server.
            chat: The chat completion that writes the summary.
            asked: The prompt of `chat`.
            said: Items that the answer lists before the summary: the user's messages.
        """
        super().__init__(new_id("resp"), services, chat, asked)
        self._said = said

    @property
    def item(self) -> Json:
        """Return the item with the summary, once the reply has ended.

        Raises:
            BackendError: The model has written no summary.
        """
        return compaction_item(self.text)

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
