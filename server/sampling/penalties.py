"""Penalties on recent tokens: repeat, presence and frequency, as in llama.cpp."""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Sequence

import numpy as np

from server.sampling.candidates import Candidates
from server.sampling.params import SamplingParams


class Penalties:
    """Penalties of one generation, for its last `repeat_last_n` tokens (-1: all), including the prompt."""

    def __init__(self, params: SamplingParams, history: Sequence[int]):
        self._params = params
        n = params.repeat_last_n
        window = history[max(0, len(history) - n) :] if n >= 0 else history
        self._window = deque(window, n) if n >= 0 else None
        counts = Counter(window)
        self._ids, self._counts = array("q", counts), array("f", counts.values())
        self._places = {token: i for i, token in enumerate(counts)}

    def accept(self, token: int) -> None:
        """Add a committed token to the window, and drop the token that leaves it."""
        if self._window is not None:
            if len(self._window) == self._window.maxlen:
                self._forget_token(self._window.popleft())
            self._window.append(token)
        if token not in self._places:
            self._places[token] = len(self._ids)
            self._ids.append(token)
            self._counts.append(0)
        self._counts[self._places[token]] += 1

    def apply(self, c: Candidates) -> None:
        """Change the candidates' logits: apply the repeat penalty, then the frequency and presence penalties.

        The repeat penalty divides logits above 0 and multiplies others. The frequency penalty is subtracted
        for each occurrence, the presence penalty once.
        """
        p = self._params
        at, found = c.find(np.asarray(self._ids))
        logits = c.logits[at]
        repeat = np.float32(p.repeat_penalty)
        logits = np.where(logits <= 0, logits * repeat, logits / repeat)
        fixed, each = np.float32(p.presence_penalty), np.float32(p.frequency_penalty)
        c.replace(at, logits - (np.asarray(self._counts)[found] * each + fixed))

    def _forget_token(self, token: int) -> None:
        """Subtract 1 from a token's count. At 0, remove its entry; the last entry takes its index."""
        place = self._places[token]
        self._counts[place] -= 1
        if self._counts[place] == 0:
            last = self._ids[-1]
            self._ids[place], self._counts[place], self._places[last] = last, self._counts[-1], place
            del self._ids[-1], self._counts[-1], self._places[token]
