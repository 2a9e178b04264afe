"""Let the model write a summary that replaces the earlier conversation."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator
from typing import Any, TypeAlias

from server.api.answer import Answer
from server.api.chat.chat_request import ChatRequest
from server.api.choices import ReplyChoice
from server.api.services import Services
from server.api.stages.prompted import Prompted
from server.errors import BackendError

Json: TypeAlias = dict[str, Any]

INSTRUCTION = (
    "Summarise the conversation above, so that you can go on with it from your summary alone: what the user "
    "wants, what was found out and done, what was decided, the names that matter, and what is left to do. "
    "Write the summary and nothing else."
)
"""Message at the end of a conversation that asks the model for a summary."""


def with_instruction(chat: Json, instruction: str = INSTRUCTION) -> Json:
    """Return the body of a chat completion whose reply summarises a conversation.

    Args:
        chat: Body of a chat completion with the conversation.
        instruction: The user's message that asks for the summary.
    """
    left_out = ("tools", "tool_choice", "response_format", "parallel_tool_calls", "generate", "stream")
    kept = {name: value for name, value in chat.items() if name not in left_out}
    last = {"role": "user", "content": instruction}
    return {**kept, "messages": [*chat["messages"], last], "logprobs": False, "top_logprobs": None}


class Summary(Answer, ABC):
    """Base of answers whose reply is a summary. They are never streamed."""

    def __init__(self, id: str, services: Services, chat: ChatRequest, asked: Prompted) -> None:
        """Submit the prompt.

        Args:
            id: Id of the answer.
            services: The server.
            chat: The chat completion that writes the summary.
            asked: The prompt of `chat`.
        """
        super().__init__(id, services, chat, [asked])
        self._choice = self._choices[0]

    @property
    def text(self) -> str:
        """Return the summary, once the reply has ended.

        Raises:
            BackendError: The model has written no summary.
        """
        self._choice.portion()
        if not (summary := self._choice.message.content.strip()):
            raise BackendError("the model wrote no summary: the conversation stays as it is")
        return summary

    def _opening_events(self) -> Iterator[bytes]:
        yield from ()

    def _new_events(self, choice: ReplyChoice) -> Iterator[bytes]:
        yield from ()

    def _closing_events(self) -> Iterator[bytes]:
        yield from ()
