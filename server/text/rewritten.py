"""Remember replies whose text in a later prompt differs from what the model generated."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

MOST_CHARACTERS = 1 << 25
"""Maximum characters kept, both spellings counted: room for 100 conversations of 40,000 tokens.

With half of it, 50 conversations have room. In all others, the model evaluates rewritten calls again.
"""


class Rewritten:
    """Known beginnings of prompts, each as a pair of texts: the template's, and the generated one.

    The least recently used pair is dropped first. Pairs of different salts are kept apart. Safe from any
    thread.
    """

    def __init__(self, most_characters: int = MOST_CHARACTERS) -> None:
        self._most_characters = most_characters
        self._by_salt: dict[str, dict[str, str]] = {}  # for each salt: generated text by the template's text
        self._by_use: OrderedDict[tuple[str, str], None] = OrderedDict()
        self.n_characters = 0
        self._lock = Lock()

    def learn(self, written: str, generated: str, salt: str) -> None:
        """Keep a pair: the template's text `written` and the text as it was generated, for this salt."""
        with self._lock:
            self._forget_pair(written, salt)
            self._by_salt.setdefault(salt, {})[written] = generated
            self._by_use[salt, written] = None
            self.n_characters += len(written) + len(generated)
            while self.n_characters > self._most_characters:
                oldest, its_text = next(iter(self._by_use))
                self._forget_pair(its_text, oldest)

    def as_generated(self, prompt: str, salt: str) -> str:
        """Return the prompt; the longest written text that begins it is replaced by its generated text."""
        with self._lock:
            known = self._by_salt.get(salt, {})
            written = max((one for one in known if prompt.startswith(one)), key=len, default=None)
            if written is None:
                return prompt
            self._by_use.move_to_end((salt, written))
            return known[written] + prompt[len(written) :]

    def _forget_pair(self, written: str, salt: str) -> None:
        if (generated := self._by_salt.get(salt, {}).pop(written, None)) is not None:
            del self._by_use[salt, written]
            self.n_characters -= len(written) + len(generated)
            if not self._by_salt[salt]:
                del self._by_salt[salt]
