"""Convert the turns of a request to the Messages API to chat messages. Pure."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from server.api.body import TextPart
from server.api.messages.messages_request import Turn
from server.api.messages.messages_tools import OfferedTools
from server.api.messages.request_blocks import (
    Block,
    OtherBlock,
    Returned,
    ThinkingBlock,
    ToolReference,
    ToolResultBlock,
    ToolUseBlock,
)
from server.api.sealed import decode_thoughts
from server.api.unseen import TEXT_ONLY, Senses, seen
from server.errors import FieldError

Json: TypeAlias = dict[str, Any]

SUMMARY = "What was said before, in short:\n"
"""Beginning of the message that replaces a compacted conversation."""


class TurnMessages:
    """Chat messages, built turn by turn."""

    def __init__(
        self, tools: OfferedTools, before: Sequence[Json] = (), *, senses: Senses = TEXT_ONLY
    ) -> None:
        """Begin with messages of an earlier request.

        Args:
            tools: The request's tools; turns may show deferred tools.
            before: Chat messages of the earlier conversation.
            senses: What the model reads beside text.
        """
        self.messages = list(before)
        self._tools = tools
        self._senses = Senses(sees=senses.sees)  # blocks hold no sounds

    def add(self, turns: Sequence[Turn]) -> None:
        """Add these turns, except system turns that are to be cleared.

        Raises:
            FieldError: A turn after the last reply has a file, or a picture that the model cannot read.
        """
        _refuse_unread(turns, self._senses)
        spoken = max((i for i, turn in enumerate(turns) if turn.role == "user"), default=-1)
        for i, turn in enumerate(turns):
            if turn.role == "system" and (i < spoken and turn.clear_at == "next_user_message"):
                continue
            if isinstance(turn.content, str):
                self.messages.append({"role": turn.role, "content": turn.content})
            elif turn.role == "assistant":
                self._reply(turn.content)
            else:
                self._add_user_turn(turn.role, turn.content)

    def _add_user_turn(self, role: str, blocks: Sequence[Block]) -> None:
        """Add a turn in order: each tool's result as a message, other blocks as messages of `role`."""
        for returned, some in itertools.groupby(blocks, lambda one: isinstance(one, ToolResultBlock)):
            if returned:
                self.messages += (self._result_text(one) for one in some if isinstance(one, ToolResultBlock))
            elif said := [part for one in some if (part := self._said_part(one)) is not None]:
                message: Json = {"role": role, "content": _parts(said)}
                self.messages.append(message)

    def _said_part(self, block: Block) -> str | Json | None:
        """Return what a block says to the model: a text, or a picture as a message part; None for nothing."""
        if isinstance(block, TextPart):
            return block.text
        if not isinstance(block, OtherBlock):
            return None
        if self._senses.sees and block.type == "image":
            return seen(block.url)
        if block.type == "tool_addition" and isinstance(tool := block.fields.get("tool"), dict):
            name = next((str(tool[key]) for key in ("name", "tool_name") if key in tool), "")  # pyright: ignore[reportUnknownArgumentType]
            return self._tools.shown(name)
        if block.type == "tool_removal" and isinstance(tool := block.fields.get("tool"), dict):
            gone = " ".join(str(tool[key]) for key in ("server_name", "name") if key in tool)  # pyright: ignore[reportUnknownArgumentType]
            return f"The tool {gone} is not available any more: do not call it."
        return block.text or None

    def _reply(self, blocks: Sequence[Block]) -> None:
        """Add a reply as one message: thoughts first, then text, then calls.

        A result of a tool that Anthropic's servers ran splits the reply into two messages. A summary replaces
        all messages before it.
        """
        begun: list[Block] = []
        for block in blocks:
            if isinstance(block, OtherBlock) and block.type == "compaction" and block.fields.get("content"):
                self.messages = [{"role": "user", "content": SUMMARY + str(block.fields["content"])}]
                begun = []
            elif isinstance(block, OtherBlock) and block.type.endswith("_tool_result"):
                self.messages += _reply(begun)
                id = str(block.fields.get("tool_use_id") or "")
                self.messages.append({"role": "tool", "tool_call_id": id, "content": block.text})
                begun = []
            else:
                begun.append(block)
        self.messages += _reply(begun) if begun or not blocks else ()

    def _result_text(self, block: ToolResultBlock) -> Json:
        """Return a tool's result as a message. If the tool failed, the text begins with "Error: "."""
        given = block.content
        parts = [given] if isinstance(given, str) else [self._returned_part(part) for part in given]
        if block.is_error:
            texts = [part for part in parts if isinstance(part, str)]
            error = "Error: " + "\n".join(texts)
            parts = [error, *(part for part in parts if not isinstance(part, str))]
        return {"role": "tool", "tool_call_id": block.tool_use_id, "content": _parts(parts)}

    def _returned_part(self, part: Returned) -> str | Json:
        if self._senses.sees and isinstance(part, OtherBlock) and part.type == "image":
            return seen(part.url)
        return self._tools.shown(part.tool_name) if isinstance(part, ToolReference) else part.text


def _refuse_unread(turns: Sequence[Turn], senses: Senses) -> None:
    """Raise FieldError if a turn after the last reply has a file, or a picture that the model cannot read.

    Earlier files and pictures are allowed: another model may have read them. If these turns contain a tool's
    result, everything is allowed, since pictures may belong to the result.
    """
    n_before = len(turns)
    while n_before and turns[n_before - 1].role != "assistant":
        n_before -= 1
    new = [
        (f"messages.{i}.content.{j}.type", block)
        for i, turn in enumerate(turns[n_before:], n_before)
        for j, block in enumerate(turn.content if not isinstance(turn.content, str) else ())
    ]
    if any(isinstance(block, ToolResultBlock) for _, block in new):
        return
    for place, block in new:
        if isinstance(block, OtherBlock) and block.is_unseen and not senses.reads(block.type):
            raise FieldError(
                place, f"`{block.type}`: this model reads {senses.words} only, send a block of the type text"
            )


def _reply(blocks: Sequence[Block]) -> Iterator[Json]:
    """Yield the assistant's message made of the blocks.

    Yield nothing if all blocks are OtherBlocks without a text or a call.
    """
    thoughts = "".join(
        block.thinking or decode_thoughts(block.signature)
        for block in blocks
        if isinstance(block, ThinkingBlock)
    )
    calls = [call for block in blocks if (call := _call_of_block(block)) is not None]
    text = "".join(_block_text(block) for block in blocks)
    if blocks and not (thoughts or calls or text) and all(isinstance(one, OtherBlock) for one in blocks):
        return
    beside = {"reasoning_content": thoughts, "tool_calls": calls}
    yield {"role": "assistant", "content": text, **{name: value for name, value in beside.items() if value}}


def _block_text(block: Block) -> str:
    if isinstance(block, OtherBlock):
        return "" if block.type.endswith("_tool_use") else block.text
    return block.text if isinstance(block, TextPart) else ""


def _call_of_block(block: Block) -> Json | None:
    """Return the call of a tool in a block, in chat completion format; None if the block is no call."""
    if isinstance(block, ToolUseBlock):
        function = {"name": block.name, "arguments": block.input}
        return {"id": block.id, "type": "function", "function": function}
    if not isinstance(block, OtherBlock) or not block.type.endswith("_tool_use"):
        return None
    fields = block.fields
    server, name = fields.get("server_name"), str(fields.get("name") or block.type)
    function = {
        "name": f"{server}__{name}" if server else name,
        "arguments": json.dumps(fields.get("input") if isinstance(fields.get("input"), dict) else {}),
    }
    return {"id": str(fields.get("id") or ""), "type": "function", "function": function}


def _parts(said: Sequence[str | Json]) -> str | list[Json]:
    """Return texts and pictures as the content of a chat message."""
    if len(said) == 1 and isinstance(said[0], str):
        return said[0]
    return [{"type": "text", "text": one} if isinstance(one, str) else one for one in said]
