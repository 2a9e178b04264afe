"""Positions in models with M-RoPE: the number of a row is not its position in llama.cpp."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from server.errors import BackendError
from server.llama.backend import Batch, Embeddings, Grid
from server.pictures.grid_positions import GridPositions

N_ROWS, N_POSITIONS = 6, 3  # of a picture with two rows of three
PLACES = np.array([[0] * 6, [0, 0, 0, 1, 1, 1], [0, 1, 2] * 2, [0] * 6], np.int32)
GRID = Grid(PLACES, np.array([[1], [1], [1], [0]], np.int32), N_POSITIONS)
BEFORE = 5  # tokens before the picture
BEHIND = BEFORE + N_POSITIONS  # position of the token behind it
ROW = BEFORE + N_ROWS  # its number


@dataclass
class Cells:
    """Counts what llama.cpp would: the positions of each sequence's cells."""

    n_seqs: int = 3
    positions: dict[int, list[int]] = field(default_factory=lambda: {seq: [] for seq in range(3)})
    told: list[Any] = field(default_factory=list[Any])

    def __getattr__(self, name: str) -> Any:
        return None  # what else a Backend has

    def start(self, batch: Batch) -> Any:
        for i, (seq, position) in enumerate(zip(batch.seqs, batch.positions, strict=True)):
            for each in batch.shared.get(i, (seq,)):
                assert not self.positions[each] or position > self.positions[each][-1]
                self.positions[each].append(position)
        return lambda: np.empty((0, 1))

    def read_rows(self, batch: Batch, given: Embeddings) -> None:
        for each in batch.shared.get(0, (batch.seqs[0],)):
            self.positions[each] += batch.positions
        self.told.append((list(batch.positions), given.first))

    def trim(self, seq: int, length: int) -> None:
        self.positions[seq] = [one for one in self.positions[seq] if one < length]

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        self.positions[target] += [one for one in self.positions[source] if start <= one < end]

    def length(self, seq: int) -> int:
        return max(self.positions[seq], default=-1) + 1

    def intact(self, seq: int, length: int) -> bool:
        return length <= self.length(seq)

    def save(self, seq: int) -> bytes:
        return bytes(self.positions[seq])

    def load(self, seq: int, data: bytes) -> None:
        self.positions[seq] = list(data)


@pytest.fixture
def cells() -> Cells:
    return Cells()


@pytest.fixture
def model(cells: Cells) -> GridPositions:
    return GridPositions(cells)  # pyright: ignore[reportArgumentType]


def tokens(model: GridPositions, start: int, n: int, seq: int = 0) -> None:
    batch = Batch()
    batch.extend(seq, start, [1] * n, 0)
    model.decode(batch)


def rows(model: GridPositions, start: int, first: int = 0, end: int = N_ROWS, seqs: tuple[int, ...] = (0,)):
    batch = Batch()
    for i in range(first, end):
        batch.append(seqs, start + i, 0, wanted=False)
    model.read_rows(batch, Embeddings(np.zeros((end - first, 4), np.float32), False, GRID, first))


def with_picture(model: GridPositions) -> None:
    tokens(model, 0, BEFORE)
    rows(model, BEFORE)
    tokens(model, ROW, 4)


def test_text_goes_on_behind_the_grid(model: GridPositions, cells: Cells):
    with_picture(model)
    assert cells.positions[0] == [0, 1, 2, 3, 4, *[BEFORE] * N_ROWS, *range(BEHIND, BEHIND + 4)]
    assert model.length(0) == ROW + 4
    rows(model, ROW + 4)
    assert model.length(0) == ROW + 4 + N_ROWS
    tokens(model, ROW + 4 + N_ROWS, 1)
    assert cells.positions[0][-1] == BEHIND + 4 + N_POSITIONS
    assert model.length(0) == ROW + 4 + N_ROWS + 1


def test_grids_give_rows_their_places():
    assert GRID.positions_from(2, [10, 10]).tolist() == [[10, 10], [10, 11], [12, 10], [0, 0]]


def test_pictures_are_read_in_parts(model: GridPositions, cells: Cells):
    tokens(model, 0, BEFORE)
    rows(model, BEFORE, 0, 4)
    assert model.length(0) == BEFORE + 4
    model.trim(0, BEFORE + 4)
    rows(model, BEFORE, 4)
    assert cells.told == [([BEFORE] * 4, 0), ([BEFORE] * 2, 4)]
    assert model.length(0) == ROW
    tokens(model, ROW, 1)
    assert cells.positions[0][-1] == BEHIND


def test_trimming_counts_rows(model: GridPositions, cells: Cells):
    with_picture(model)
    model.trim(0, ROW + 1)
    assert (model.length(0), cells.length(0)) == (ROW + 1, BEHIND + 1)
    with pytest.raises(BackendError, match="a part of a picture cannot be removed"):
        model.trim(0, ROW - 1)
    model.trim(0, ROW)
    assert model.length(0) == ROW
    model.trim(0, BEFORE)
    assert (model.length(0), cells.length(0)) == (BEFORE, BEFORE)
    tokens(model, BEFORE, 2)
    assert cells.positions[0] == list(range(BEFORE + 2))


def test_copies_have_the_pictures(model: GridPositions, cells: Cells):
    with_picture(model)
    model.copy(0, 1, 0, ROW + 2)
    assert model.length(1) == ROW + 2
    model.copy(0, 1, ROW + 2, ROW + 4)
    assert (model.length(1), cells.positions[1]) == (ROW + 4, cells.positions[0])
    model.copy(0, 2, 0, BEFORE)
    tokens(model, BEFORE, 1, seq=2)
    assert cells.positions[2] == list(range(BEFORE + 1))


def test_earlier_states_change_no_positions(model: GridPositions):
    """A checkpoint has a state without cells, from which a sequence takes back what it was."""
    tokens(model, 0, BEFORE)
    rows(model, BEFORE)
    model.copy(0, 2, 0, 0)
    tokens(model, ROW, 4)
    model.copy(2, 0, ROW, ROW)
    model.trim(0, ROW)
    assert model.length(0) == ROW


def test_shared_rows_are_of_all_their_sequences(model: GridPositions, cells: Cells):
    for seq in (0, 1):
        tokens(model, 0, BEFORE, seq)
    rows(model, BEFORE, seqs=(0, 1))
    tokens(model, ROW, 1, seq=1)
    assert cells.positions[1][-1] == BEHIND


def test_saved_states_have_the_pictures(model: GridPositions, cells: Cells):
    with_picture(model)
    tokens(model, 0, 3, seq=1)
    assert model.save(1) == cells.save(1), "as without a projector"
    data = model.save(0)
    model.trim(0, 0)
    other = GridPositions(cells)  # pyright: ignore[reportArgumentType]
    other.load(2, data)
    assert other.length(2) == ROW + 4
    tokens(other, ROW + 4, 1, seq=2)
    assert cells.positions[2][-1] == BEHIND + 4
    other.load(2, model.save(1))
    assert other.length(2) == 3
