"""Penalties on recent tokens: repeat, presence and frequency, as in llama.cpp."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from server.sampling.candidates import Candidates
from server.sampling.draw import Ids
from server.sampling.params import SamplingParams


class Penalties:
    """Counts the last `repeat_last_n` tokens (-1: all) of one generation, the prompt included."""

    def __init__(self, params: SamplingParams, history: Sequence[int]):
        self._params = params
        n = params.repeat_last_n
        window = history[max(0, len(history) - n) :] if n >= 0 else history
        self._window = deque(window, n) if n >= 0 else None
        ids, counts = np.unique(np.asarray(window, np.int64), return_counts=True)
        self._n = len(ids)
        self._ids: Ids = np.zeros(2 * self._n + 64, np.int64)
        self._counts: npt.NDArray[np.float32] = np.zeros(2 * self._n + 64, np.float32)
        self._ids[: self._n], self._counts[: self._n] = ids, counts
        self._places = {int(token): i for i, token in enumerate(ids)}

    def accept(self, token: int) -> None:
        """This token was committed; the one that leaves the window no longer counts."""
        if self._window is not None:
            if len(self._window) == self._window.maxlen:
                self._forget(self._window.popleft())
            self._window.append(token)
        if token not in self._places:
            self._add(token)
        self._counts[self._places[token]] += 1

    def apply(self, c: Candidates) -> None:
        """Divide logits above 0 by the repeat penalty, multiply others; then subtract the presence penalty,
        and the frequency penalty for each occurrence."""
        p = self._params
        at, found = c.find(self._ids[: self._n])
        logits = c.logits[at]
        repeat = np.float32(p.repeat_penalty)
        logits = np.where(logits <= 0, logits * repeat, logits / repeat)
        fixed, each = np.float32(p.presence_penalty), np.float32(p.frequency_penalty)
        c.replace(at, logits - (self._counts[: self._n][found] * each + fixed))

    def _add(self, token: int) -> None:
        if self._n == len(self._ids):
            self._ids = np.append(self._ids, np.zeros(self._n, np.int64))
            self._counts = np.append(self._counts, np.zeros(self._n, np.float32))
        self._ids[self._n], self._counts[self._n] = token, 0
        self._places[token] = self._n
        self._n += 1

    def _forget(self, token: int) -> None:
        """Count one occurrence less. The last entry takes the place of one that has none left."""
        place = self._places[token]
        self._counts[place] -= 1
        if self._counts[place] == 0:
            self._n -= 1
            last = int(self._ids[self._n])
            self._ids[place], self._counts[place] = last, self._counts[self._n]
            self._places[last] = place
            del self._places[token]
