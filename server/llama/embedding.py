"""Interface between the API and models that embed. `embedder.py` is real, `tests/toy_embedder.py` a toy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Vectors: TypeAlias = npt.NDArray[np.float32]
Pooling: TypeAlias = Literal["mean", "cls", "last", "rank"]


class Embedder(Protocol):
    """A loaded model that embeds. embed() and close() are called by one thread only."""

    name: str
    n_vocab: int
    n_ctx: int  # maximum tokens of all inputs of embed() together
    n_seqs: int  # maximum inputs of embed()
    n_embd: int  # length of a vector, or the number of scores if the model ranks

    def tokenize(self, text: str, *, framed: bool = True) -> list[int]:
        """Return the ids of a text, with special tokens such as BOS around it if `framed`.

        Safe from any thread.
        """
        ...

    def pair(self, query: str, document: str) -> list[int]:
        """Return the ids of query and document as one input of a model that ranks. Safe from any thread."""
        ...

    def embed(self, inputs: Sequence[Sequence[int]]) -> Vectors:
        """Return vectors, (number of inputs, n_embd), each of Euclidean length 1 unless they are scores.

        No input may be empty. Raises BackendError.
        """
        ...

    def close(self) -> None: ...


def normalised(vectors: Vectors) -> Vectors:
    """Scale each row to Euclidean length 1; a row of zeros is unchanged."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)
