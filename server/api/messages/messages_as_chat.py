"""Turns a request to the Messages API into one for a chat completion. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from server.api.body import TextPart
from server.api.generation_fields import SharedFields
from server.api.messages.messages_request import (
    Block,
    ChoiceOfTool,
    ClientTool,
    MessagesRequest,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    Turn,
)
from server.api.sealed import held

Json: TypeAlias = dict[str, Any]

NAMES = (
    (re.compile(r"^max_completion_tokens$"), "max_tokens"),
    (re.compile(r"^stop\b"), "stop_sequences"),
    (re.compile(r"^response_format\.json_schema\b"), "output_config.format"),
    (re.compile(r"^reasoning_effort$"), "output_config.effort"),
    (re.compile(r"^reasoning_budget$"), "thinking.budget_tokens"),
    (re.compile(r"^(tools\.\d+)\.function\.parameters\b"), r"\1.input_schema"),
    (re.compile(r"^(tools\.\d+)\.function\b"), r"\1"),
)
"""What fields of a chat completion are called here."""

_AS_THEY_ARE = {*SharedFields.model_fields} - {"model"}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_ABOUT_THE_CLIENT = "x-anthropic-billing-header:"
"""Begins the system block in which Claude Code tells its version and a checksum: another one in each request,
so that nothing after it would be found in the cache."""


def chat_of(body: MessagesRequest) -> Json:
    """The body of the chat completion, to be validated."""
    data = body.model_dump(include=_AS_THEY_ARE, exclude_unset=True, by_alias=True)
    choice, config, thinking = body.tool_choice, body.output_config, body.thinking
    form = (config and config.format) or body.output_format
    data |= {
        "messages": [*_system(body.system), *itertools.chain(*map(_messages, body.messages))],
        "max_completion_tokens": body.max_tokens,
        "stop": body.stop_sequences or None,
        "tools": [_tool(tool) for tool in body.tools] or None,
        "tool_choice": _tool_choice(choice) if choice else None,
        "parallel_tool_calls": False if choice and choice.disable_parallel_tool_use else None,
        "response_format": form and {"type": "json_schema", "json_schema": {"schema": form.definition}},
        "reasoning_effort": config.effort if config else None,
    }
    if thinking:
        off = thinking.type == "disabled"
        data["reasoning_budget"] = 0 if off else thinking.budget_tokens
        data["chat_template_kwargs"] = {"enable_thinking": not off}
    return {name: value for name, value in data.items() if value is not None}


def _system(given: str | Sequence[TextPart]) -> list[Json]:
    parts = [TextPart(type="text", text=given)] if isinstance(given, str) else given
    said = [part for part in parts if part.text and not part.text.startswith(_ABOUT_THE_CLIENT)]
    return [{"role": "system", "content": _parts(said)}] if said else []


def _messages(turn: Turn) -> Iterator[Json]:
    """A user's turn is what the tools have returned, and what the user says."""
    if isinstance(turn.content, str):
        yield {"role": turn.role, "content": turn.content}
    elif turn.role == "assistant":
        yield _reply(turn.content)
    else:
        for returned, blocks in itertools.groupby(turn.content, lambda one: isinstance(one, ToolResultBlock)):
            if returned:
                yield from (_result(block) for block in blocks if isinstance(block, ToolResultBlock))
            else:
                yield {"role": turn.role, "content": _parts(list(blocks))}


def _reply(blocks: Sequence[Block]) -> Json:
    """As one message, in which thoughts come before the text, and calls after it."""
    thoughts = "".join(
        block.thinking or held(block.signature) for block in blocks if isinstance(block, ThinkingBlock)
    )
    calls = [
        {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": block.input}}
        for block in blocks
        if isinstance(block, ToolUseBlock)
    ]
    text = "".join(block.text for block in blocks if isinstance(block, TextPart))
    beside = {"reasoning_content": thoughts, "tool_calls": calls}
    return {"role": "assistant", "content": text, **{name: value for name, value in beside.items() if value}}


def _result(block: ToolResultBlock) -> Json:
    """That a tool has failed is told in words."""
    if isinstance(block.content, str):
        content = block.content
    else:
        content = _parts([part if isinstance(part, TextPart) else part.as_text() for part in block.content])
    if block.is_error:
        text = content if isinstance(content, str) else "\n".join(part["text"] for part in content)
        content = f"Error: {text}"
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}


def _parts(blocks: Sequence[Block]) -> str | list[Json]:
    texts = [block.text for block in blocks if isinstance(block, TextPart)]
    return texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]


def _tool(tool: ClientTool) -> Json:
    told = {"name": tool.name, "description": tool.description, "strict": tool.strict}
    return {"type": "function", "function": {**told, "parameters": tool.input_schema}}


def _tool_choice(choice: ChoiceOfTool) -> Any:
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    return _CHOICES[choice.type]
