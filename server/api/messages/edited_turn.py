"""Edit the conversation of a request as the request asks, before its prompt is made."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Any, TypeAlias

from starlette.requests import Request

from server.api.chat.chat_route import n_tokens
from server.api.chat.summary import INSTRUCTION, Summary, with_instruction
from server.api.delivery import unless_gone
from server.api.messages.context_edits import ClearThinking, ClearToolUses, CompactEdit, is_due
from server.api.messages.messages_as_chat import Before, MessagesAsChat
from server.api.messages.messages_request import MessagesRequest
from server.api.messages.turns_as_messages import SUMMARY
from server.api.services import Services
from server.api.stages.submit import prepared_chat
from server.api.stages.validate import checked, on_prompt_thread

Json: TypeAlias = dict[str, Any]


class _PlainSummary(Summary):
    """A summary that no client receives."""

    def _whole_json(self) -> bytes:
        return self.text.encode()


class TurnEditor:
    """Editor of one request's conversation, which also counts the tokens of its prompt."""

    def __init__(self, request: Request, services: Services, turn: MessagesAsChat) -> None:
        self._request, self._services = request, services
        self.turn = turn
        self._n: int | None = None  # number of tokens in the prompt; None: not counted yet

    async def n_tokens(self) -> int:
        """Return the number of tokens in the turn's prompt, after the edits so far."""
        if self._n is None:
            self._n = await self._count(self.turn.chat)
        return self._n

    async def edit(self, body: MessagesRequest, *, compacts: bool = True) -> MessagesAsChat:
        """Apply the edits that the request asks for, if their triggers are reached; return the edited turn.

        Args:
            body: The request.
            compacts: False: skip edits for which the model would write a summary.
        """
        if instruction := body.compaction:
            self._make_summary((instruction.instructions or "").strip() or INSTRUCTION)
        if body.context_management is None:
            return self.turn
        self.turn = replace(self.turn, applied=[])
        for edit in body.context_management.edits:
            if isinstance(edit, CompactEdit):
                if compacts and is_due(edit, await self.n_tokens(), self._messages, self._n_ctx):
                    await self._compact(edit)
            else:
                await self._clear(edit)
        return self.turn

    @property
    def _messages(self) -> list[Json]:
        return self.turn.chat["messages"]

    @property
    def _n_ctx(self) -> int:
        return self._services.model.n_ctx

    async def _clear(self, edit: ClearToolUses | ClearThinking) -> None:
        messages, n_cleared = edit.apply(self._messages)
        if not n_cleared:
            return
        n_before = await self.n_tokens()
        clears_uses = isinstance(edit, ClearToolUses)
        if clears_uses and not is_due(edit, n_before, self._messages, self._n_ctx):
            return
        chat = {**self.turn.chat, "messages": messages}
        n_after = await self._count(chat)
        if clears_uses and edit.clear_at_least and n_before - n_after < edit.clear_at_least.value:
            return
        what = "cleared_tool_uses" if clears_uses else "cleared_thinking_turns"
        told = {"type": edit.type, what: n_cleared, "cleared_input_tokens": n_before - n_after}
        self._n = n_after
        self.turn = replace(self.turn, chat=chat, applied=[*(self.turn.applied or ()), told])

    async def _compact(self, edit: CompactEdit) -> None:
        """Replace the conversation by a summary that the model writes.

        If the edit pauses after the summary, the summary becomes the reply. Otherwise the model writes it
        now, and the turn's prompt begins with it.
        """
        instruction = f"{INSTRUCTION}\n{edit.instructions}" if edit.instructions else INSTRUCTION
        if edit.pause_after_compaction:
            self._make_summary(instruction)
            return
        chat = checked(self._services, with_instruction(self.turn.chat, instruction))
        asked = await on_prompt_thread(self._request, prepared_chat, self._services, chat)
        answer = _PlainSummary(f"msg_{secrets.token_hex(12)}", self._services, chat, asked)
        try:
            await unless_gone(self._request, answer.whole())
            summary = answer.text
        except BaseException:
            answer.cancel()
            raise
        now, messages = self.turn.now, [{"role": "user", "content": SUMMARY + summary}]
        chat = {**self.turn.chat, "messages": [*now.system, *messages]}
        self._n = None
        self.turn = replace(
            self.turn, chat=chat, now=Before(messages, now.system, now.tools), summary=summary
        )

    def _make_summary(self, instruction: str) -> None:
        chat = with_instruction(self.turn.chat, instruction)
        self._n, self.turn = None, replace(self.turn, chat=chat, is_summary=True)

    async def _count(self, chat: Json) -> int:
        body = checked(self._services, chat, fits=False)
        return await on_prompt_thread(self._request, n_tokens, self._services, body)
