"""A toy that embeds without weights: equal tokens get equal vectors, common ones make them alike."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from server.errors import BackendError
from server.llama.embedding import Vectors, normalised
from server.sampling.noise import lower_noise, mix
from tests.fake_backend import FakeVocabulary


@dataclass(slots=True)
class FakeEmbedder:
    """An Embedder that returns the mean of what each token stands for.

    A ranking one scores an input by its share of the letter e. held: while it is cleared, embed() waits.
    sizes: how many inputs each call had. threads: which ones called.
    """

    name: str = "toy-embedder"
    n_vocab: int = FakeVocabulary.size
    n_ctx: int = 64
    n_seqs: int = 4
    n_embd: int = 16
    ranks: bool = False
    sizes: list[int] = field(default_factory=list[int])
    threads: set[str] = field(default_factory=set[str])
    held: threading.Event = field(default_factory=threading.Event)
    closed: bool = False

    def __post_init__(self) -> None:
        self.held.set()

    def tokenize(self, text: str, *, framed: bool = True) -> list[int]:
        return FakeVocabulary().tokenize(text, special=True)

    def pair(self, query: str, document: str) -> list[int]:
        return [*self.tokenize(query), 0, *self.tokenize(document)] if query or document else []

    def embed(self, inputs: Sequence[Sequence[int]]) -> Vectors:
        if not 0 < len(inputs) <= self.n_seqs or not 0 < sum(map(len, inputs)) <= self.n_ctx:
            raise BackendError(f"{len(inputs)} inputs of {sum(map(len, inputs))} tokens at once")
        self.sizes.append(len(inputs))
        self.threads.add(threading.current_thread().name)
        deadline = time.monotonic() + 10
        while not self.held.wait(0.01) and not self.closed and time.monotonic() < deadline:
            pass
        if self.ranks:
            return np.array([[one.count(ord("e")) / len(one)] for one in inputs], dtype=np.float32)
        return normalised(np.stack([np.mean([self._of(t) for t in one], axis=0) for one in inputs]))

    def close(self) -> None:
        self.closed = True

    def _of(self, token: int) -> Vectors:
        return lower_noise(mix(token + 1), 0, np.arange(self.n_embd)).astype(np.float32)
