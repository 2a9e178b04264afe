"""Answer a request to the Messages API, whole or as events."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import orjson

from server.api import problem
from server.api.answer import Answer, sse
from server.api.chat.chat_request import ChatRequest
from server.api.choices import ReplyChoice
from server.api.messages.content_blocks import BlockEvents, Json, blocks_of, compaction_block
from server.api.messages.messages_as_chat import MessagesAsChat
from server.api.messages.messages_request import MessagesRequest
from server.api.services import Services
from server.api.stages.prompted import Prompted
from server.api.statistics import measured
from server.errors import DuoError
from server.replies.kept import StoredResponse

PING = {"type": "ping"}


class MessagesAnswer(Answer):
    """An answer in the format of Anthropic's Messages API, made of one reply."""

    keep_alive = ("ping", orjson.dumps(PING).decode())

    def __init__(
        self,
        services: Services,
        chat: ChatRequest,
        asked: Prompted,
        body: MessagesRequest,
        turn: MessagesAsChat,
    ) -> None:
        """Submit the prompt.

        Args:
            services: The server.
            chat: The chat completion that the request was converted to.
            asked: The prompt of `chat`.
            body: The request.
            turn: The request as a turn of its conversation.
        """
        super().__init__(f"msg_{secrets.token_hex(12)}", services, chat, [asked])
        self._turn = turn
        self._keeps = body.thread is not None
        self._compares = body.diagnostics
        self._salt = body.salt
        self._model = body.model or services.model.id
        self._tells_costs = chat.timings_per_token
        self._omits = body.thinking is not None and body.thinking.display == "omitted"
        self._choice = self._choices[0]
        self._blocks = BlockEvents(omits=self._omits)

    def _whole_json(self) -> bytes:
        if self._turn.is_summary:
            content = [compaction_block(self._own_summary())]
        else:
            content = blocks_of(self._choice.portion().pieces, omits=self._omits)
        if self._turn.summary is not None:
            content.insert(0, compaction_block(self._turn.summary))
        self._keep_conversation()
        return orjson.dumps({**self._message_json(content, **self._stop_reason), **self._usage_json()})

    def _opening_events(self) -> Iterator[bytes]:
        message = self._message_json([], stop_reason=None, stop_sequence=None)
        yield _sse_event({"type": "message_start", "message": message})
        yield _sse_event(PING)
        if self._turn.summary is not None:
            yield from map(_sse_event, self._blocks.summary(self._turn.summary))

    def _new_events(self, choice: ReplyChoice) -> Iterator[bytes]:
        if self._turn.is_summary:
            if choice.reason is not None:
                yield from map(_sse_event, self._blocks.summary(self._own_summary()))
            return
        yield from map(_sse_event, self._blocks.feed(choice.portion().pieces))
        if choice.reason is not None:
            yield from map(_sse_event, self._blocks.end())

    def _closing_events(self) -> Iterator[bytes]:
        self._keep_conversation()
        ended = {"delta": self._stop_reason, "usage": self._usage_so_far(), **self._usage_json()}
        ended |= self._edits_json()
        yield _sse_event({"type": "message_delta", **ended})
        yield _sse_event({"type": "message_stop"})

    def _failure_event(self, error: DuoError) -> bytes:
        return _sse_event(problem.anthropic_body(error))

    def _message_json(self, content: list[Json], **ending: Any) -> Json:
        about: Json = {"id": self._id, "type": "message", "role": "assistant", "model": self._model}
        if left_out := self._turn.tools.left_out:
            about["warnings"] = left_out
        if self._compares is not None:
            about["diagnostics"] = self._cache_diagnostics()
        return {**about, "content": content, **ending, "usage": self._usage_so_far(), **self._edits_json()}

    def _edits_json(self) -> Json:
        """Return the applied edits as the answer's field; {} if the request asked for no edits."""
        applied = self._turn.applied
        return {} if applied is None else {"context_management": {"applied_edits": applied}}

    def _own_summary(self) -> str:
        """Return the text of the reply. Call it only if the reply is a summary and has ended."""
        self._choice.portion()
        return self._choice.message.content.strip()

    @property
    def _stop_reason(self) -> Json:
        """Return why the reply has ended, as the fields stop_reason and stop_sequence."""
        choice = self._choice
        if self._turn.is_summary:
            reason = "compaction"
        elif choice.reason == "tool_calls":
            reason = "tool_use"
        elif choice.reason == "length":
            stats = choice.stats()
            full = stats.n_prompt + stats.n_predicted >= self._services.model.n_ctx
            reason = "model_context_window_exceeded" if full else "max_tokens"
        else:
            reason = "stop_sequence" if choice.stop_string else "end_turn"
        return {"stop_reason": reason, "stop_sequence": choice.stop_string}

    def _prompt_parts(self) -> dict[str, str]:
        """Return tools and system prompt as texts, to find out what a later prompt has changed.

        The key of a part is Anthropic's name for a change of this part.
        """
        chat, now = self._turn.chat, self._turn.now
        return {"tools_changed": repr(chat.get("tools")), "system_changed": repr(now.system)}

    def _cache_diagnostics(self) -> Json | None:
        """Return where this prompt first differs from an earlier message's, as the reason for a cache miss.

        None if the request names no such message, or if this prompt begins with the whole earlier prompt.
        """
        id = self._compares.previous_message_id if self._compares else None
        if id is None:
            return None
        prompt = self._prompts[0].requests[0].prompt
        found = self._services.prompts.divergence(self._salt, id, prompt, self._prompt_parts())
        if found is None:
            return {"cache_miss_reason": {"type": "previous_message_not_found"}}
        if not found.n_missed:
            return None
        kind = found.changed or "messages_changed"
        return {"cache_miss_reason": {"type": kind, "cache_missed_input_tokens": found.n_missed}}

    def _keep_conversation(self) -> None:
        """Keep the prompt for comparisons, and the conversation for later requests, if the request asks."""
        if self._compares is not None:
            prompt = self._prompts[0].requests[0].prompt
            self._services.prompts.remember(self._salt, self._id, prompt, self._prompt_parts())
        if not self._keeps or self._turn.is_summary:
            return
        now = self._turn.now
        held = {"id": self._id, "system": now.system, "tools": [tool.model_dump() for tool in now.tools]}
        messages = [*now.messages, self._choice.message.as_json]
        self._services.replies.put(self.owner, StoredResponse(held, messages))

    async def _flush_store(self) -> None:
        if self._keeps:
            await self._services.replies.flush()

    def _usage_json(self) -> Json:
        return measured(self._choice.stats()) if self._tells_costs else {}

    def _usage_so_far(self) -> Json:
        """Return the token counts so far. As in Anthropic's API, input_tokens leaves out cached tokens."""
        stats = self._choice.stats()
        return {
            "input_tokens": stats.n_prompt - stats.n_cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": stats.n_cached,
            "output_tokens": stats.n_predicted,
            "output_tokens_details": {"thinking_tokens": self._choice.n_reasoning},
        }


def _sse_event(event: Json) -> bytes:
    return b"event: " + event["type"].encode() + b"\n" + sse(event)
