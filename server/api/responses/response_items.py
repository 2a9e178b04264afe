"""The items of a conversation in OpenAI's Responses API."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, Literal, Self, TypeAlias, cast, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    WithJsonSchema,
    model_validator,
)

from server.api.body import Body, RefusalPart, type_of
from server.api.chat.chat_request import arguments_text
from server.api.responses.response_tools import AnyTool
from server.grammar.json_schema import MAX_DEPTH, depth

Json: TypeAlias = dict[str, Any]


class Part(Body):
    """A text in a message."""

    type: Literal["input_text", "output_text", "text", "summary_text"]
    text: str


Unseen: TypeAlias = Literal["input_image", "input_file", "input_audio", "computer_screenshot"]


class UnseenPart(Body):
    """A picture, a file or a sound in a message."""

    type: Unseen
    image_url: Any = None
    """Data URL of a picture."""
    input_audio: Any = None
    """A sound, as in chat completions."""


class ThoughtPart(Body):
    type: Literal["reasoning_text", "summary_text", "text"]
    text: str


def _kind_of_part(part: Any) -> str:
    kind = type_of(part)
    if kind == "refusal":
        return "refused"
    return "unseen" if kind in get_args(Unseen) else "said"


PartInMessage: TypeAlias = Annotated[
    Annotated[Part, Tag("said")]
    | Annotated[RefusalPart, Tag("refused")]
    | Annotated[UnseenPart, Tag("unseen")],
    Discriminator(_kind_of_part),
]
ThoughtParts: TypeAlias = Annotated[list[ThoughtPart], Field(fail_fast=True)]


def _object_as_text(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value


def _refuse_deep_nesting(value: Any) -> Any:
    if depth(value) > MAX_DEPTH:
        raise ValueError(f"must not be nested more than {MAX_DEPTH} levels deep")
    return value


Output: TypeAlias = Annotated[
    str | list[Any], AfterValidator(_refuse_deep_nesting), BeforeValidator(_object_as_text)
]
"""A tool's result: a text, or parts of any type."""


Arguments: TypeAlias = Annotated[
    str, BeforeValidator(arguments_text), WithJsonSchema({"type": ["string", "object"]})
]


class ItemBody(Body):
    """Fields of every item."""

    id: str | None = None


class MessageItem(ItemBody):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Annotated[list[PartInMessage], Field(fail_fast=True)]
    """Refusals in earlier replies are read as texts. Earlier pictures are replaced by texts."""

    @model_validator(mode="before")
    @classmethod
    def _replies_may_be_empty(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        given = {name: value for name, value in cast(Json, data).items() if value is not None}
        return {"content": "", **given} if given.get("role") == "assistant" else given


class CallItem(ItemBody):
    """A call of a function by the model."""

    type: Literal["function_call"]
    call_id: str
    name: str
    namespace: str | None = None
    arguments: Arguments = "{}"
    """Arguments of the function: JSON text, or an object."""


class CustomCallItem(ItemBody):
    """A call of a custom tool by the model."""

    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    namespace: str | None = None
    input: str = ""
    """Input of the custom tool."""


class CallOutputItem(ItemBody):
    """The result of a function or a custom tool."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str
    output: Output = ""
    """A text, or parts. Parts that are not text are replaced by a short text."""


class ReasoningItem(ItemBody):
    """Thoughts of an earlier reply: as text, as a summary, or as encrypted content."""

    type: Literal["reasoning"]
    content: ThoughtParts = Field(default_factory=list[ThoughtPart])
    """The thoughts. Without them, the summary is read."""
    summary: ThoughtParts = Field(default_factory=list[ThoughtPart])
    encrypted_content: str | None = None
    """Thoughts, encoded by this server; read if content and summary are empty."""


class CompactionItem(ItemBody):
    """A summary of the earlier conversation."""

    type: Literal["compaction", "compaction_summary", "context_compaction"]
    encrypted_content: str = ""
    """The summary, encoded by this server."""


class Effort(Body):
    effort: str | None = None


class ConfigurationItem(ItemBody):
    """Settings that apply from this item on."""

    type: Literal["configuration_update"]
    reasoning: Effort | None = None
    text: Json | None = None


class FoundToolsItem(ItemBody):
    """Tools that a search has found, or that the client adds."""

    type: Literal["tool_search_output", "additional_tools"]
    call_id: str | None = None
    tools: Annotated[list[AnyTool], Field(fail_fast=True)] = Field(default_factory=list[AnyTool])


class ReferenceItem(Body):
    """An item of an earlier response, or of its input."""

    type: Literal["item_reference"] = "item_reference"
    id: str


class OtherItem(Body):
    """An item of any other type, such as a call or a result of one of OpenAI's own tools."""

    model_config = ConfigDict(extra="allow", strict=True)

    type: str

    @model_validator(mode="after")
    def _is_shallow(self) -> Self:
        _refuse_deep_nesting(self.fields)
        return self

    @property
    def fields(self) -> Json:
        """Return the fields except the type."""
        return self.model_extra or {}


_TYPES: dict[str, str | None] = {
    **dict.fromkeys(("message", "function_call", "custom_tool_call", "reasoning", "configuration_update")),
    "function_call_output": "returned",
    "custom_tool_call_output": "returned",
    "compaction": "compaction",
    "compaction_summary": "compaction",
    "context_compaction": "compaction",
    "tool_search_output": "found",
    "additional_tools": "found",
    "item_reference": "item_reference",
}
"""The tag of each type of item that has a class of its own; None: the tag is the type."""


_KINDS = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
    "compaction": "cmp",
}
"""Prefixes of items' ids, by type."""


def _tag_of(item: Any) -> str:
    """Return the tag by which pydantic chooses an item's class. Messages and references may have no type."""
    if not isinstance(item, dict):
        return "message"
    given = cast(Json, item)
    kind = given.get("type")
    if kind is None:
        return "item_reference" if "id" in given and not {"role", "content"} & set(given) else "message"
    if not isinstance(kind, str):
        return "message"
    return _TYPES[kind] or kind if kind in _TYPES else "other"


Item: TypeAlias = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[CustomCallItem, Tag("custom_tool_call")]
    | Annotated[CallOutputItem, Tag("returned")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[CompactionItem, Tag("compaction")]
    | Annotated[ConfigurationItem, Tag("configuration_update")]
    | Annotated[FoundToolsItem, Tag("found")]
    | Annotated[ReferenceItem, Tag("item_reference")]
    | Annotated[OtherItem, Tag("other")],
    Discriminator(_tag_of),
]


ANY_ITEM: TypeAdapter[Item] = TypeAdapter(Item)
"""Validates one item."""


def as_stored(item: Item, id_of: Callable[[str], str]) -> Json:
    """Return an item as OpenAI lists it.

    Args:
        item: An item of a request's input.
        id_of: Given a prefix, returns a new id, for an item that has none.
    """
    told = item.model_dump(by_alias=True, exclude_none=True)
    told.setdefault("id", id_of(_KINDS.get(told["type"], "item")))
    if isinstance(item, MessageItem):
        if isinstance(item.content, str):
            kind = "output_text" if item.role == "assistant" else "input_text"
            told["content"] = [{"type": kind, "text": item.content}]
        told["status"] = "completed"
    return told
