"""Read prompts and inputs in llama-server's forms: texts, token ids, or both mixed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, cast

from server.errors import FieldError
from server.llama.backend import Vocabulary

Pieces: TypeAlias = Sequence[str | int]
"""One prompt or input: a sequence of texts and token ids."""

_ID: dict[str, Any] = {"type": "integer", "minimum": 0}
_PROMPT_STRING: dict[str, Any] = {
    "type": "object",
    "required": ["prompt_string"],
    "properties": {
        "prompt_string": {"type": "string"},
        "multimodal_data": {
            "type": "array",
            "maxItems": 0,
            "description": "Pictures are read in chats only.",
        },
    },
}
_TEXT_PARTS: dict[str, Any] = {
    "type": "object",
    "required": ["content"],
    "properties": {
        "content": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["type", "text"],
                "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
            },
        }
    },
}
_MIXED: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": [{"type": "string"}, _ID]}}
_ITEM: dict[str, Any] = {"anyOf": [{"type": "string"}, _PROMPT_STRING, _ID, _MIXED]}
ONE_PROMPT: dict[str, Any] = {"anyOf": [{"type": "string"}, _MIXED]}
PROMPTS: dict[str, Any] = {
    "anyOf": [{"type": "string"}, _PROMPT_STRING, {"type": "array", "minItems": 1, "items": _ITEM}]
}
"""JSON schema of prompts for openapi.yaml; validators check the same forms."""


def inputs_schema(most: int) -> dict[str, Any]:
    """Return the JSON schema of the input of /embeddings, for at most `most` inputs."""
    listed = {"type": "array", "minItems": 1, "maxItems": most, "items": {"anyOf": [_ITEM, _TEXT_PARTS]}}
    return {"anyOf": [{"type": "string", "minLength": 1}, listed, _PROMPT_STRING, _TEXT_PARTS]}


def unwrapped(given: Any) -> Any:
    """Convert each object that has a prompt_string or text parts to its text, also within a list.

    Raises:
        ValueError: An object has another form, or contains pictures.
    """
    if isinstance(given, list):
        return [unwrapped(one) if isinstance(one, dict) else one for one in cast(list[Any], given)]
    if not isinstance(given, dict):
        return given
    wrapped = cast(dict[str, Any], given)
    if wrapped.get("multimodal_data"):
        raise ValueError("multimodal_data: this route reads texts only, /v1/chat/completions pictures")
    if "content" in wrapped:
        return _text_of(wrapped["content"])
    if not isinstance(text := wrapped.get("prompt_string"), str):
        raise ValueError("an object must have a text as its prompt_string")
    return text


def _text_of(parts: Any) -> str:
    found: list[str] = []
    for part in cast(list[Any], parts) if isinstance(parts, list) else [parts]:
        told = cast(dict[str, Any], part) if isinstance(part, dict) else {}
        if told.get("type") != "text" or not isinstance(text := told.get("text"), str):
            raise ValueError("content must be a list of text parts: this server reads texts only")
        found.append(text)
    return "".join(found)


def apart(given: str | list[Any]) -> list[Pieces]:
    """Split an input into prompts as llama-server does: a list that contains an id is one prompt."""
    if isinstance(given, str):
        return [[given]]
    if any(isinstance(item, int) for item in given):
        return [given]
    return [[item] if isinstance(item, str) else item for item in given]


def are_pieces(pieces: object) -> bool:
    """Return True if `pieces` is a non-empty list of texts and token ids."""
    if not isinstance(pieces, list) or not pieces:
        return False
    return all(isinstance(p, str | int) and not isinstance(p, bool) for p in cast(list[object], pieces))


def joined_ids(vocabulary: Vocabulary, pieces: Pieces, param: str, *, special: bool) -> list[int]:
    """Return the tokens of a prompt. If `special`, its texts may spell control tokens.

    Raises:
        FieldError: The vocabulary lacks an id. The error names the field `param`.
    """
    tokens: list[int] = []
    for piece in pieces:
        if isinstance(piece, str):
            tokens += vocabulary.tokenize(piece, special=special)
        elif 0 <= piece < vocabulary.size:
            tokens.append(piece)
        else:
            raise FieldError(param, f"there is no token {piece}: the vocabulary has {vocabulary.size}")
    return tokens
