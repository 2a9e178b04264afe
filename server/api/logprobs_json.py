"""Logprobs in OpenAI's shape."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Any

from server.llama.backend import Vocabulary
from server.sampling.logprobs import TokenLogprobs


def logprobs_json(vocabulary: Vocabulary, tokens: Iterable[TokenLogprobs]) -> dict[str, Any]:
    """The `logprobs` of a choice or a chunk."""
    content: list[dict[str, Any]] = []
    for one in tokens:
        entry = _entry(vocabulary, one.token, one.logprob)
        entry["top_logprobs"] = [_entry(vocabulary, token, logprob) for token, logprob in one.top]
        content.append(entry)
    return {"content": content, "refusal": None}


def _entry(vocabulary: Vocabulary, token: int, logprob: float) -> dict[str, Any]:
    """`token` is for people, control tokens written out; `bytes` are what the token adds to the text, null
    for none. A token that is part of a character has no text of its own."""
    added = vocabulary.piece(token)
    written = added or vocabulary.piece(token, special=True)
    return {
        "token": written.decode("utf-8", "replace"),
        "logprob": logprob,
        "bytes": [*added] if added else None,
    }


class LegacyLogprobs:
    """Logprobs of one reply in the shape of OpenAI's legacy completions, a portion at a time."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def told(self, logprobs: dict[str, Any]) -> dict[str, Any]:
        """logprobs: those of logprobs_json, of the tokens after those told before. text_offset is the
        character of the reply's text that a token begins in or with. top_logprobs has the token itself
        besides the likeliest ones; of tokens that are written alike only the likeliest."""
        tokens: list[str] = []
        tops: list[dict[str, float]] = []
        offsets: list[int] = []
        for entry in logprobs["content"]:
            offsets.append(self._offset)
            tokens.append(_written(entry))
            top: dict[str, float] = {}
            for one in (*entry["top_logprobs"], entry):
                top.setdefault(_written(one), one["logprob"])
            tops.append(top)
            self._offset += len(self._decoder.decode(bytes(entry["bytes"] or ())))
        return {
            "tokens": tokens,
            "token_logprobs": [entry["logprob"] for entry in logprobs["content"]],
            "top_logprobs": tops,
            "text_offset": offsets,
        }


def _written(entry: dict[str, Any]) -> str:
    """As OpenAI writes a token that is part of a character: bytes:\\xf0\\x9f."""
    data = bytes(entry["bytes"] or ())
    try:
        return data.decode() or entry["token"]
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
