"""Logprobs in OpenAI's shape."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from server.llama.backend import Vocabulary
from server.sampling.logprobs import TokenLogprobs


def logprobs_json(vocabulary: Vocabulary, tokens: Iterable[TokenLogprobs]) -> dict[str, Any]:
    """The `logprobs` of a choice or a chunk."""
    content = [
        {
            **_entry(vocabulary, one.token, one.logprob),
            "top_logprobs": [_entry(vocabulary, token, logprob) for token, logprob in one.top],
        }
        for one in tokens
    ]
    return {"content": content, "refusal": None}


def _entry(vocabulary: Vocabulary, token: int, logprob: float) -> dict[str, Any]:
    """`token` is for people, control tokens written out; `bytes` are what the token adds to the text, null
    for none. A token that is part of a character has no text of its own."""
    added = vocabulary.piece(token)
    written = added or vocabulary.piece(token, special=True)
    return {
        "token": written.decode(errors="replace"),
        "logprob": logprob,
        "bytes": list(added) if added else None,
    }
