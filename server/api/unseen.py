"""Replace parts of a message that the model cannot see by short texts. Pure."""

from __future__ import annotations

from typing import Any, cast

_KINDS = (("image", "an image"), ("screenshot", "an image"), ("audio", "a sound"), ("video", "a video"))


def stand_in(type: str) -> str:
    """Return a text that stands for a part of this type: a picture, a file or a sound."""
    what = next((called for part, called in _KINDS if part in type), "a file")
    return f"[{what} that this model cannot see: it reads text only]"


def seen(url: Any) -> dict[str, Any]:
    """Return a picture as a part of a chat message; anything but a data URL is refused later."""
    return {"type": "image_url", "image_url": {"url": url}}


def text_of(part: Any) -> str:
    """Return a part's text; for a part that is not text, the text that stands for it.

    Args:
        part: JSON in OpenAI's or Anthropic's form: an object with a type and, if it is a text, a text.
    """
    if isinstance(part, str):
        return part
    fields = cast(dict[str, Any], part) if isinstance(part, dict) else {}
    for name in ("text", "refusal"):
        if isinstance(said := fields.get(name), str):
            return said
    return stand_in(str(fields.get("type", "")))
