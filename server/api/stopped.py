"""Why a reply ended, in llama-server's words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from server.api.choices import ReplyChoice
from server.llama.backend import Vocabulary

StopType: TypeAlias = Literal["eos", "word", "limit"]


def why_stopped(choice: ReplyChoice, vocabulary: Vocabulary, stops: Sequence[str]) -> tuple[StopType, str]:
    """With the stop string, "" if it was none."""
    message, tokens = choice.said
    if choice.reason == "length":
        return "limit", ""
    if tokens and tokens[-1] in vocabulary.eog:
        return "eos", ""
    spelled = b"".join(vocabulary.piece(token) for token in tokens).decode(errors="replace")
    rest = spelled[len(message.content) :]
    possible = (stop for stop in stops if stop and rest.startswith(stop))
    word = min(possible, key=len, default="")  # the shortest was complete first
    return ("word" if word else "eos"), word
