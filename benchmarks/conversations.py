"""Conversations with several servers, and the texts that they are about."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeAlias

from benchmarks.client import call_json
from benchmarks.prompts import load

Message: TypeAlias = dict[str, str]

MESSAGE_TOKENS = 200  # a history is cut into messages of this length


class Conversation:
    """What each server was told and has said; they differ in the replies only."""

    def __init__(self, opening: Sequence[Message], n_servers: int) -> None:
        self.opening = opening
        self._messages = [list(opening) for _ in range(n_servers)]

    def messages(self, server: int) -> list[Message]:
        return list(self._messages[server])

    def hear(self, server: int, reply: str) -> None:
        self._messages[server].append({"role": "assistant", "content": reply})

    def say(self, text: str) -> None:
        for messages in self._messages:
            messages.append({"role": "user", "content": text})


class Author:
    """Openings of conversations from the evaluation prompts' text, which all differ in their first word."""

    def __init__(self, tokenize: Callable[[str], list[str]]) -> None:
        """tokenize: a text's pieces, one for each token."""
        self._tokenize = tokenize
        self._n_written = 0

    def opening(self, n_tokens: int) -> list[Message]:
        """Messages of n_tokens in all, without what the template adds; the user is first and last."""
        pieces = self._pieces(n_tokens)
        texts = ["".join(pieces[i : i + MESSAGE_TOKENS]) for i in range(0, len(pieces), MESSAGE_TOKENS)]
        if len(texts) % 2 == 0:
            texts[-2:] = ["".join(texts[-2:])]
        return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]

    def system(self, n_tokens: int) -> Message:
        return {"role": "system", "content": "".join(self._pieces(n_tokens))}

    def _pieces(self, n_tokens: int) -> list[str]:
        """Raises ReplyError."""
        self._n_written += 1
        said = [message["content"] for prompt in load() for message in prompt.messages]
        draw = random.Random(self._n_written)
        parts = [str(self._n_written)]
        while True:
            parts += draw.sample(said, len(said))
            pieces = self._tokenize(" ".join(parts).encode("ascii", "ignore").decode())
            if len(pieces) >= n_tokens:
                return pieces[:n_tokens]


def pieces_of(port: int, text: str) -> list[str]:
    """By llama-server's POST /tokenize, of text in ASCII. Raises ReplyError."""
    answer = call_json(port, "/tokenize", {"content": text, "with_pieces": True})
    return [str(token["piece"]) for token in answer["tokens"]]
