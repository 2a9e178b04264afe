"""Prompts in which a template writes an earlier reply otherwise than the model generated it."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

MOST_CHARACTERS = 1 << 25
"""Kept in all, in both spellings; 100 conversations of 40,000 tokens. Half as many, and a conversation beyond
the first 50 evaluates a call again that its template writes in another way."""


class Rewritten:
    """Beginnings of prompts as the template writes them, each with the text that was evaluated and generated
    in its place. The pair that was least recently used is forgotten first; pairs of different salts never
    meet. Safe from any thread."""

    def __init__(self, most_characters: int = MOST_CHARACTERS) -> None:
        self._most_characters = most_characters
        self._by_salt: dict[str, dict[str, str]] = {}  # generated text by the template's
        self._by_use: OrderedDict[tuple[str, str], None] = OrderedDict()
        self.n_characters = 0
        self._lock = Lock()

    def learn(self, written: str, generated: str, salt: str) -> None:
        with self._lock:
            self._forget(written, salt)
            self._by_salt.setdefault(salt, {})[written] = generated
            self._by_use[salt, written] = None
            self.n_characters += len(written) + len(generated)
            while self.n_characters > self._most_characters:
                oldest, its_text = next(iter(self._by_use))
                self._forget(its_text, oldest)

    def as_generated(self, prompt: str, salt: str) -> str:
        """The prompt with the longest beginning that is known in its generated spelling."""
        with self._lock:
            known = self._by_salt.get(salt, {})
            written = max((one for one in known if prompt.startswith(one)), key=len, default=None)
            if written is None:
                return prompt
            self._by_use.move_to_end((salt, written))
            return known[written] + prompt[len(written) :]

    def _forget(self, written: str, salt: str) -> None:
        if (generated := self._by_salt.get(salt, {}).pop(written, None)) is not None:
            del self._by_use[salt, written]
            self.n_characters -= len(written) + len(generated)
            if not self._by_salt[salt]:
                del self._by_salt[salt]
