"""Write logprobs in OpenAI's shape."""

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
    """Return the `logprobs` of a choice or a chunk.

    Args:
        vocabulary: Vocabulary of the tokens.
        tokens: Tokens with their logprobs.
        shares: True: write probabilities, under llama-server's names, instead of logprobs.
        special: True if control tokens are part of the text, so their bytes are not null.
    """
    name = "prob" if shares else "logprob"
    content: list[dict[str, Any]] = []
    for one in tokens:
        pairs = ((one.token, one.logprob), *one.top)
        entry, *top = (
            {
                **_token_entry(vocabulary, token, special=special),
                name: math.exp(logprob) if shares else logprob,
            }
            for token, logprob in pairs
        )
        content.append({**entry, f"top_{name}s": top})
    return {"content": content, "refusal": None}


def _token_entry(vocabulary: Vocabulary, token: int, *, special: bool) -> dict[str, Any]:
    """Return a token's entry: `token` is for display; `bytes` is what the token adds to the text, or null.

    `token` has U+FFFD for an incomplete character.
    """
    added = vocabulary.piece(token, special=special)
    written = added or vocabulary.piece(token, special=True)
    return {"id": token, "token": written.decode("utf-8", "replace"), "bytes": [*added] if added else None}


class LegacyLogprobs:
    """Writes one reply's logprobs in the shape of OpenAI's legacy completions, portion by portion."""

    def __init__(self, n_unseen: int = 0) -> None:
        """Begin a reply.

        n_unseen: Number of characters of the first tokens, such as BOS, that the text does not contain.
        """
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = -n_unseen

    def next_entries(self, entries: Iterable[dict[str, Any]]) -> dict[str, Any]:
        """Return the logprobs of the next tokens.

        text_offset is the index of the character in which the token begins. top_logprobs includes the token
        itself. If several tokens have equal texts, it includes only the likeliest of them.

        Args:
            entries: Entries of logprobs_json(). The logprob of a prompt's first token is None.
        """
        next_entries = {
            name: list[Any]() for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        }
        for entry in entries:
            next_entries["text_offset"].append(max(0, self._offset))
            next_entries["tokens"].append(_legacy_text(entry))
            next_entries["token_logprobs"].append(entry["logprob"])
            next_entries["top_logprobs"].append(None if entry["logprob"] is None else _top_logprobs(entry))
            self._offset += len(self._decoder.decode(bytes(entry["bytes"] or ())))
        return next_entries


def _top_logprobs(entry: dict[str, Any]) -> dict[str, float]:
    top: dict[str, float] = {}
    for one in (*entry["top_logprobs"], entry):
        top.setdefault(_legacy_text(one), one["logprob"])
    return top


def _legacy_text(entry: dict[str, Any]) -> str:
    """Return a token's text; an incomplete character is written as OpenAI does, such as bytes:\\xf0\\x9f."""
    data = bytes(entry["bytes"] or ())
    try:
        return data.decode() or entry["token"]
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
