"""Edit long conversations as `context_management` of Anthropic's Messages API asks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag

from server.api.body import Body, type_of

Json: TypeAlias = dict[str, Any]
Messages: TypeAlias = Sequence[Json]

CLEARED = "[An earlier result of this tool, left out to save space.]"
"""Text that replaces a cleared result."""
KEPT_USES, KEPT_TURNS = 3, 1
"""Anthropic's defaults for what an edit keeps: the last results of tools, the last turns with thoughts."""
USUAL_TRIGGER = {"clear_tool_uses_20250919": 100_000, "compact_20260112": 150_000}
"""Anthropic's defaults: input tokens above which an edit is applied."""


class TokenAmount(Body):
    type: Literal["input_tokens"]
    value: Annotated[int, Field(ge=0)]


class UseAmount(Body):
    type: Literal["tool_uses"]
    value: Annotated[int, Field(ge=0)]


class TurnAmount(Body):
    type: Literal["thinking_turns"]
    value: Annotated[int, Field(ge=1)]


class AllThinkingTurns(Body):
    type: Literal["all"]


def _tag_of_amount(given: Any) -> str:
    return str(type_of(given) or given)


Trigger: TypeAlias = Annotated[
    Annotated[TokenAmount, Tag("input_tokens")] | Annotated[UseAmount, Tag("tool_uses")],
    Discriminator(_tag_of_amount),
]
KeptThoughts: TypeAlias = Annotated[
    Annotated[TurnAmount, Tag("thinking_turns")] | Annotated[AllThinkingTurns | Literal["all"], Tag("all")],
    Discriminator(_tag_of_amount),
]


class ClearToolUses(Body):
    """Replaces tool results, except the last ones, by a short text."""

    type: Literal["clear_tool_uses_20250919"]
    trigger: Trigger | None = None
    """When to clear. Absent: above 100,000 input tokens, or nine tenths of the context if less."""
    keep: UseAmount | None = None
    """Number of last results to keep. Absent: 3."""
    clear_at_least: TokenAmount | None = None
    """Minimum tokens to free; if clearing would free fewer, nothing is cleared."""
    exclude_tools: Annotated[list[str], Field(fail_fast=True)] | None = None
    clear_tool_inputs: bool | Annotated[list[str], Field(fail_fast=True)] | None = None
    """Names of tools whose calls' inputs are also cleared; true: all tools."""

    def apply(self, messages: Messages) -> tuple[Messages, int]:
        """Return the messages with old tool results replaced by CLEARED, and the number of these results."""
        calls = [call for message in messages for call in message.get("tool_calls") or ()]
        names = {call["id"]: call["function"]["name"] for call in calls}
        excluded = self.exclude_tools or ()
        uses = [
            i
            for i, message in enumerate(messages)
            if message["role"] == "tool" and names.get(message["tool_call_id"]) not in excluded
        ]
        n_kept = KEPT_USES if self.keep is None else self.keep.value
        old = {i for i in uses[: max(0, len(uses) - n_kept)] if messages[i]["content"] != CLEARED}
        if not old:
            return messages, 0
        ids = {messages[i]["tool_call_id"] for i in old}
        edited = [
            {**message, "content": CLEARED} if i in old else self._without_inputs(message, ids)
            for i, message in enumerate(messages)
        ]
        return edited, len(old)

    def _without_inputs(self, message: Json, ids: set[str]) -> Json:
        """Return the message with empty arguments in those calls that are to be cleared.

        A call is cleared if its id is in `ids`, and if clear_tool_inputs includes its tool.
        """
        cleared, calls = self.clear_tool_inputs, message.get("tool_calls")
        if not cleared or not calls:
            return message
        left: list[Json] = []
        for call in calls:
            name = call["function"]["name"]
            clears = call["id"] in ids and (cleared is True or name in cleared)
            left.append({**call, "function": {"name": name, "arguments": {}}} if clears else call)
        return {**message, "tool_calls": left}


class ClearThinking(Body):
    """Leaves out the thoughts of all but the last turns; a turn ends at the user's next message."""

    type: Literal["clear_thinking_20251015"]
    keep: KeptThoughts | None = None
    """Turns whose thoughts are kept. Absent: the last turn."""

    def apply(self, messages: Messages) -> tuple[Messages, int]:
        """Return the messages without old thoughts, and the number of turns that lost thoughts."""
        if self.keep is not None and not isinstance(self.keep, TurnAmount):
            return messages, 0
        turn, turn_of = 0, list[int]()
        for message in messages:
            turn += message["role"] == "user"
            turn_of.append(turn)
        thinking = [at for at, one in zip(turn_of, messages, strict=True) if one.get("reasoning_content")]
        n_kept = self.keep.value if self.keep else KEPT_TURNS
        old = set(sorted(set(thinking))[:-n_kept])
        edited = [
            {name: value for name, value in one.items() if name != "reasoning_content" or at not in old}
            for at, one in zip(turn_of, messages, strict=True)
        ]
        return edited if old else messages, len(old)


class CompactEdit(Body):
    """Replaces the conversation by a summary that the model writes at the beginning of the reply."""

    type: Literal["compact_20260112"]
    trigger: TokenAmount | None = None
    """When to summarise. Absent: above 150,000 input tokens, or nine tenths of the context if less."""
    instructions: str | None = None
    """Additional instructions for the summary."""
    pause_after_compaction: bool = False
    """true: the reply ends after the summary."""


Edit: TypeAlias = Annotated[ClearToolUses | ClearThinking | CompactEdit, Field(discriminator="type")]


class ContextEdits(Body):
    edits: Annotated[list[Edit], Field(fail_fast=True)] = Field(default_factory=list[Edit])
    """Edits, applied in this order before the prompt is made."""


class SummaryRequest(Body):
    """A request to reply with a summary of the conversation."""

    type: Literal["summarize"]
    instructions: str | None = None
    """Instructions for the summary; they replace the server's."""


def is_due(edit: ClearToolUses | CompactEdit, n_tokens: int, messages: Messages, n_ctx: int) -> bool:
    """Return True if the conversation exceeds the trigger of the edit, in tokens or tool results.

    Args:
        edit: The edit.
        n_tokens: Tokens in the prompt.
        messages: Messages of the conversation.
        n_ctx: Length of the context in tokens, which limits the default trigger.
    """
    if isinstance(edit.trigger, UseAmount):
        return sum(message["role"] == "tool" for message in messages) > edit.trigger.value
    usual = min(USUAL_TRIGGER[edit.type], n_ctx * 9 // 10)
    return n_tokens > (edit.trigger.value if edit.trigger else usual)
