"""The content blocks of turns in Anthropic's Messages API."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self, TypeAlias, cast

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag, WithJsonSchema, model_validator

from server.api.body import Body, TextPart, type_of
from server.api.unseen import stand_in
from server.grammar.json_schema import MAX_DEPTH, depth

Json: TypeAlias = dict[str, Any]


class ThinkingBlock(Body):
    type: Literal["thinking"]
    thinking: str
    signature: str = ""
    """The signature that the server sent with the thoughts."""


class RedactedBlock(Body):
    """Thoughts that another server has encrypted."""

    type: Literal["redacted_thinking"]


def _as_object(given: Any) -> Any:
    """Return the arguments of a call as an object. They may be its JSON text, which some clients send.

    Any other value becomes the object's field `input`.
    """
    if not isinstance(given, str):
        return cast(Json, given) if isinstance(given, dict) else {"input": given}
    try:
        parsed = json.loads(given)
    except (ValueError, RecursionError):
        parsed = None
    return cast(Json, parsed) if isinstance(parsed, dict) else {"input": given} if given else {}


class ToolUseBlock(Body):
    """A call by the model."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: Annotated[Json, BeforeValidator(_as_object), WithJsonSchema({})] = Field(
        default_factory=dict[str, Any]
    )
    """An object, or its JSON text. Any other value becomes the field `input` of an object."""


class ToolReference(Body):
    """A tool of the request that a search for tools has found."""

    type: Literal["tool_reference"]
    tool_name: str
    """Name of the tool. If the tool is deferred, it is shown here."""


class OtherBlock(Body):
    """A block of any other type, such as a picture, a file, or a call or result of Anthropic's own tools."""

    model_config = ConfigDict(extra="allow", strict=True)

    type: str

    @model_validator(mode="after")
    def _is_shallow(self) -> Self:
        if depth(self.fields) > MAX_DEPTH:
            raise ValueError(f"must not be nested more than {MAX_DEPTH} levels deep")
        return self

    @property
    def fields(self) -> Json:
        """Return the fields except the type."""
        return self.model_extra or {}

    @property
    def is_unseen(self) -> bool:
        """True for a picture or a file in which texts_in() finds no text."""
        return self.type in ("image", "document", "container_upload") and not texts_in(self.fields)

    @property
    def url(self) -> Any:
        """Return a picture's URL, or the data URL of a picture in base64; None if the block has neither."""
        source = self.fields.get("source")
        given = cast(Json, source) if isinstance(source, dict) else {}
        if given.get("type") == "base64":
            return f"data:{given.get('media_type')};base64,{given.get('data')}"
        return given.get("url")

    @property
    def text(self) -> str:
        """Return the block's texts, one a line; "" if there is none.

        For a picture or file without texts, return the text that replaces it.
        """
        return "\n".join(texts_in(self.fields)) or (stand_in(self.type) if self.is_unseen else "")


def _tag_of_part(part: Any) -> str:
    return {"text": "a text", "tool_reference": "a reference"}.get(str(type_of(part)), "another part")


Returned: TypeAlias = Annotated[
    Annotated[TextPart, Tag("a text")]
    | Annotated[ToolReference, Tag("a reference")]
    | Annotated[OtherBlock, Tag("another part")],
    Discriminator(_tag_of_part),
]


class ToolResultBlock(Body):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Annotated[list[Returned], Field(fail_fast=True)] = ""
    is_error: bool = False
    """true: the model reads the text with the prefix `Error: `."""


def _tag_of_block(block: Any) -> str:
    kind = type_of(block)
    own = ("text", "thinking", "redacted_thinking", "tool_use", "tool_result")
    return f"a {kind}" if kind in own else "another block"


Block: TypeAlias = Annotated[
    Annotated[TextPart, Tag("a text")]
    | Annotated[ThinkingBlock, Tag("a thinking")]
    | Annotated[RedactedBlock, Tag("a redacted_thinking")]
    | Annotated[ToolUseBlock, Tag("a tool_use")]
    | Annotated[ToolResultBlock, Tag("a tool_result")]
    | Annotated[OtherBlock, Tag("another block")],
    Discriminator(_tag_of_block),
]

_TELLING = ("title", "context", "url", "text", "stdout", "stderr", "error_code", "tool_name")
"""Fields of a block that hold text for the model."""
_HOLDING = ("source", "content", "tool_references")
"""Fields of a block that hold inner blocks, which have the fields in _TELLING."""


def texts_in(value: Any) -> list[str]:
    """Return the texts in a block of any form; pictures are replaced by texts."""
    if isinstance(value, str):
        return [value] if value else []
    if isinstance(value, list):
        return [text for one in cast(list[Any], value) for text in texts_in(one)]
    if not isinstance(value, dict):
        return []
    fields = cast(Json, value)
    if fields.get("type") in ("image", "base64", "url", "file") and "text" not in fields:
        return [stand_in("image")] if fields["type"] == "image" else []
    told = [text for name in _TELLING if isinstance(text := fields.get(name), str) and text]
    if fields.get("type") == "text" and isinstance(data := fields.get("data"), str):
        told.append(data)  # of a document
    return told + [text for name in _HOLDING for text in texts_in(fields.get(name))]
