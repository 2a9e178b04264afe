"""Logprobs in OpenAI's shape."""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable
from typing import Any

from server.llama.backend import Vocabulary
from server.sampling.logprobs import TokenLogprobs


def logprobs_json(
    vocabulary: Vocabulary, tokens: Iterable[TokenLogprobs], *, shares: bool = False, special: bool = False
) -> dict[str, Any]:
    """The `logprobs` of a choice or a chunk. shares: probabilities instead of their logarithms, under
    llama-server's names. special: the text has control tokens written out."""
    name = "prob" if shares else "logprob"
    content: list[dict[str, Any]] = []
    for one in tokens:
        pairs = ((one.token, one.logprob), *one.top)
        entry, *top = (
            {**_entry(vocabulary, token, special=special), name: math.exp(logprob) if shares else logprob}
            for token, logprob in pairs
        )
        content.append({**entry, f"top_{name}s": top})
    return {"content": content, "refusal": None}


def _entry(vocabulary: Vocabulary, token: int, *, special: bool) -> dict[str, Any]:
    """`token` is for display, control tokens written out; `bytes`: what it adds to the text, null for
    nothing. A token with part of a character has no text of its own."""
    added = vocabulary.piece(token, special=special)
    written = added or vocabulary.piece(token, special=True)
    return {"id": token, "token": written.decode("utf-8", "replace"), "bytes": [*added] if added else None}


class LegacyLogprobs:
    """Logprobs of one reply in the shape of OpenAI's legacy completions, portion by portion."""

    def __init__(self, n_unseen: int = 0) -> None:
        """n_unseen: characters of the first tokens that the text does not have."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = -n_unseen

    def told(self, entries: Iterable[dict[str, Any]]) -> dict[str, Any]:
        """entries: from logprobs_json, of the next tokens; the first of a prompt has no logprob. text_offset:
        the character of the text that the token begins in. top_logprobs includes the token itself; of tokens
        with the same text, only the likeliest."""
        told = {name: list[Any]() for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}
        for entry in entries:
            told["text_offset"].append(max(0, self._offset))
            told["tokens"].append(_written(entry))
            told["token_logprobs"].append(entry["logprob"])
            told["top_logprobs"].append(None if entry["logprob"] is None else _top(entry))
            self._offset += len(self._decoder.decode(bytes(entry["bytes"] or ())))
        return told


def _top(entry: dict[str, Any]) -> dict[str, float]:
    top: dict[str, float] = {}
    for one in (*entry["top_logprobs"], entry):
        top.setdefault(_written(one), one["logprob"])
    return top


def _written(entry: dict[str, Any]) -> str:
    """A token with part of a character as OpenAI writes it: bytes:\\xf0\\x9f."""
    data = bytes(entry["bytes"] or ())
    try:
        return data.decode() or entry["token"]
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
