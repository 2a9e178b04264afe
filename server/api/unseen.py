"""Put short texts in place of message parts that the model cannot read. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

_KINDS = (("image", "an image"), ("screenshot", "an image"), ("audio", "a sound"), ("video", "a video"))
_PICTURES, _SOUNDS = ("image_url", "input_image", "image"), ("input_audio",)
"""Types of parts that are pictures and sounds, in OpenAI's APIs and in Anthropic's."""


@dataclass(frozen=True, slots=True)
class Senses:
    """Senses of a model: kinds of parts that it reads beside text."""

    sees: bool = False
    hears: bool = False

    def reads(self, type: Any) -> bool:
        """Return True if the model reads parts of this type, given a type other than text."""
        return (self.sees and type in _PICTURES) or (self.hears and type in _SOUNDS)

    @property
    def words(self) -> str:
        """Return what the model reads as English text, such as "text and pictures"."""
        read = ["text", *["pictures"] * self.sees, *["sounds"] * self.hears]
        return " and ".join((*filter(None, [", ".join(read[:-1])]), read[-1]))


TEXT_ONLY = Senses()


def stand_in(type: str) -> str:
    """Return the text that replaces a part of this type: a picture, a file or a sound."""
    what = next((called for part, called in _KINDS if part in type), "a file")
    return f"[{what} that this model cannot see: it reads text only]"


def seen(url: Any) -> dict[str, Any]:
    """Return a picture as a part of a chat message. Whether its URL may be used is checked later."""
    return {"type": "image_url", "image_url": {"url": url}}


def sensed(part: Any) -> dict[str, Any]:
    """Return a picture or sound of the Responses API as a part of a chat message."""
    fields = cast(dict[str, Any], part if isinstance(part, dict) else vars(part))
    if fields["type"] in _SOUNDS:
        return {"type": "input_audio", "input_audio": fields.get("input_audio")}
    return seen(fields.get("image_url"))


def text_of(part: Any) -> str:
    """Return a part's text; for a part that is not text, return the text that replaces it.

    Args:
        part: A text, or an object in OpenAI's or Anthropic's form: with a type and, if it has one, a text.
    """
    if isinstance(part, str):
        return part
    fields = cast(dict[str, Any], part) if isinstance(part, dict) else {}
    for name in ("text", "refusal"):
        if isinstance(said := fields.get(name), str):
            return said
    return stand_in(str(fields.get("type", "")))
