"""A picture as a model reads it: rows of embeddings, with tokens around and between them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from server.llama.backend import PICTURE_IDS, Grid, Hidden


@dataclass(frozen=True, slots=True, eq=False)
class PicturePart:
    """Consecutive positions of a picture: either tokens or rows of embeddings."""

    tokens: tuple[int, ...] = ()
    rows: Hidden | None = None  # (positions, n_embd); None: the positions have tokens
    whole: bool = False  # rows attend to each other in both directions, so one decode must have all
    grid: Grid | None = None  # positions of the rows in a model with M-RoPE

    def __len__(self) -> int:
        return len(self.tokens) if self.rows is None else len(self.rows)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Picture:
    """A picture in a prompt: each of its positions has an id that no token has.

    The ids are a hash of the pixels, so that caches of prompts recognise a picture by its ids.
    """

    word: str  # stands for the picture in a text
    ids: tuple[int, ...]
    parts: tuple[PicturePart, ...]
    places: dict[int, tuple[PicturePart, int]] = field(init=False)  # by id: part, and index in the part

    def __post_init__(self) -> None:
        places = ((part, i) for part in self.parts for i in range(len(part)))
        object.__setattr__(self, "places", dict(zip(self.ids, places, strict=True)))

    @property
    def n_bytes(self) -> int:
        return sum(part.rows.nbytes for part in self.parts if part.rows is not None)

    @property
    def whole_spans(self) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of each part that must be in one decode, as indices among the positions."""
        start = 0
        for part in self.parts:
            if part.whole:
                yield start, start + len(part)
            start += len(part)


def ids_of(digest: Sequence[int]) -> tuple[int, ...]:
    """Return an id for each position of a picture, made of 30 bits of a hash.

    Args:
        digest: A hash of four bytes for each position.
    """
    values = np.frombuffer(bytes(digest), dtype=np.uint32)
    return tuple((values % PICTURE_IDS + PICTURE_IDS).tolist())
