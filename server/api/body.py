"""Base class of request bodies, and types of their fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from server.api.unseen import stand_in
from server.grammar.json_schema import MAX_DEPTH, depth

Neutral: TypeAlias = Mapping[str, Sequence[Any]]
"""Fields by name, with the values for which ignoring the field changes nothing."""


class Body(BaseModel):
    """Base of request bodies.

    Unknown fields are ignored, null is the same as absent, "1" is not a number, and 1.0 is the integer 1, as
    in JSON Schema. Lists have fail_fast, which reports only the first invalid item. Reporting a million items
    would block the event loop for seconds.
    """

    model_config = ConfigDict(extra="ignore", strict=True)
    unsupported: ClassVar[Neutral] = {}
    """Fields that are refused unless their value is listed here; a listed value changes nothing."""

    def contradiction(self) -> tuple[str, str] | None:
        """Return the first field that contradicts another field, and the reason; None if there is none."""
        return None

    @model_validator(mode="before")
    @classmethod
    def _as_json_means_it(cls, data: Any) -> Any:
        if isinstance(data, dict):
            given = cast(dict[Any, Any], data)
            return {key: _integers_of_floats(value) for key, value in given.items() if value is not None}
        return data


class TextPart(Body):
    type: Literal["text"]
    text: str


class RefusalPart(Body):
    """A part of an earlier reply, in OpenAI's form, with the model's refusal. It is read as text."""

    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        return self.refusal


def type_of(given: Any) -> Any:
    """Return the `type` of a JSON object, or of the pydantic model made of it."""
    if isinstance(given, dict):
        return cast(dict[str, Any], given).get("type")
    return getattr(given, "type", None)


def said_or_refused(part: Any) -> str:
    """Return the tag by which pydantic chooses a part's class, so that errors only concern this class."""
    return "refused" if type_of(part) == "refusal" else "said"


class OtherPart(Body):
    """A part that is not text, such as a picture. The model reads a short text instead."""

    type: str
    image_url: Any = None
    """Of a picture: an object with its URL, or the URL itself. A model that sees pictures reads data URLs."""
    input_audio: Any = None
    """Of a sound: `data` in base64, and a `format`, wav or mp3."""

    @property
    def text(self) -> str:
        """Return the text that the model reads instead of this part."""
        return stand_in(self.type)

    @property
    def is_picture(self) -> bool:
        return self.type in ("image_url", "input_image")

    @property
    def is_sound(self) -> bool:
        return self.type == "input_audio"

    @property
    def url(self) -> Any:
        """Return the URL of a picture. It is not validated, and may be a value of any type."""
        given = self.image_url
        return cast(dict[str, Any], given).get("url") if isinstance(given, dict) else given


Content: TypeAlias = str | Annotated[list[TextPart], Field(fail_fast=True)]
"""The content of a message."""


def joined(content: Content) -> str:
    """Return the text of a message's content."""
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _integers_of_floats(value: Any) -> Any:
    """Convert floats that are whole numbers to integers, alone or in a list."""
    if type(value) is float:
        return int(value) if value.is_integer() and abs(value) < EXACT else value
    if type(value) is list:
        items = cast(list[Any], value)
        return (
            [_integers_of_floats(item) for item in items]
            if any(type(item) is float for item in items)
            else items
        )
    return value


def at_most(n: int) -> BeforeValidator:
    """Return a validator that refuses objects and lists of more than n entries without reading entries."""

    def check(given: object) -> object:
        if isinstance(given, dict | list) and len(cast(list[Any], given)) > n:
            raise ValueError(f"at most {n} entries")
        return cast(object, given)

    return BeforeValidator(check)


def _refuse_deep_nesting(schema: dict[str, Any]) -> dict[str, Any]:
    if depth(schema) > MAX_DEPTH:
        raise ValueError(f"must not be nested more than {MAX_DEPTH} levels deep")
    return schema


EXACT = 2.0**53
"""Above this, a float may differ from the integer in the JSON text."""
Count: TypeAlias = Annotated[int, Field(ge=0, le=1 << 31)]
LastTokens: TypeAlias = Annotated[int, Field(ge=-1, le=1 << 31)]
Share: TypeAlias = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
NotNegative: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Finite: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]
EchoedSchema: TypeAlias = Annotated[dict[str, Any], AfterValidator(_refuse_deep_nesting)]
"""A schema that may be serialised again, in a template or a response.

Deeply nested schemas are refused, because not all JSON that can be read can also be written.
"""
