"""Tiles: rows are added where a whole tile is quicker, by what decodes took."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from server.estimators import Plane
from server.llama.tiles import ENOUGH, KEEP, PROBE, SHARPEST, SURPRISE, TILE, Tiles

ROW_S, READ_S = 0.0004, 0.003  # of a row, and of reading the weights
ONE_BY_ONE_S, IN_TILES_S = 2.7e-6, 2.2e-7  # of a cell that a row attends to


def cells(n_rows: int, context: int) -> int:
    return sum(context + i + 1 for i in range(n_rows))


def blocked(n_rows: int, context: int) -> float:
    """Seconds of a decode where tiles are quicker a row."""
    cell_s = ONE_BY_ONE_S if n_rows < TILE else IN_TILES_S
    return READ_S + ROW_S * n_rows + cell_s * cells(n_rows, context)


def plain(n_rows: int, context: int) -> float:
    """The same where they are not."""
    return READ_S + ROW_S * n_rows + IN_TILES_S * cells(n_rows, context)


def after_a_conversation(seconds: Callable[[int, int], float], noise: float = 0.0) -> Tiles:
    """Prompts in chunks, and replies row by row, at several lengths."""
    tiles, draw = Tiles(), random.Random(1)
    for length in (60, 500, 1500, 3000):
        for start in range(0, length, 512):
            n = min(512, length - start)
            tiles.observe(n, cells(n, start), seconds(n, start) * draw.uniform(1 - noise, 1 + noise))
        for i in range(20):
            at = length + i
            tiles.observe(1, at + 1, seconds(1, at) * draw.uniform(1 - noise, 1 + noise))
    return tiles


def padding(tiles: Tiles, n_rows: int, context: int) -> int:
    return tiles.padding(n_rows, cells(n_rows, context), context + n_rows)


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_few_rows_beside_a_long_context_are_padded_to_a_tile(noise: float):
    tiles = after_a_conversation(blocked, noise)
    for context in (2000, 3600):
        for n_rows in (20, 26, 40, TILE - 1):
            assert padding(tiles, n_rows, context) == TILE - n_rows
            assert blocked(TILE, context) < blocked(n_rows, context)


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_where_a_tile_would_take_longer_nothing_is_padded(noise: float):
    tiles = after_a_conversation(blocked, noise)
    for n_rows, context in ((1, 3600), (2, 3600), (26, 0), (4, 1000), (TILE, 3600), (100, 3600)):
        assert padding(tiles, n_rows, context) == 0


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_no_rows_are_added_where_tiles_are_no_quicker(noise: float):
    tiles = after_a_conversation(plain, noise)
    assert not any(padding(tiles, n, context) for n in range(1, 100) for context in (0, 500, 4000, 8000))


def test_nothing_is_padded_before_both_kinds_are_known():
    tiles = Tiles()
    for i in range(100):
        tiles.observe(1, 4000 + i, blocked(1, 4000 + i))
    assert padding(tiles, 26, 4000) == 0
    for _ in range(int(ENOUGH)):
        assert padding(tiles, 26, 4000) == 0
        tiles.observe(512, cells(512, 0), blocked(512, 0))
    assert not Tiles().padding(26, 100_000, 4000)


def test_what_padded_decodes_take_corrects_what_was_believed():
    """The first estimate of a tile, from long chunks only, is far too low here."""
    tiles = after_a_conversation(blocked)
    assert padding(tiles, 26, 3600)
    for _ in range(40):
        if padding(tiles, 26, 3600):
            tiles.observe(TILE, TILE * 3626, 10 * blocked(26, 3600))
    assert not padding(tiles, 26, 3600)


def test_a_plane_is_found_and_a_trend_in_next_to_nothing_is_not():
    plane, draw = Plane(KEEP, ENOUGH, SURPRISE, SHARPEST), random.Random(2)
    for _ in range(300):
        rows, m = draw.randint(1, 60), draw.randint(0, 200_000)
        plane.observe(rows, m, 0.002 + 3e-4 * rows + 2e-6 * m)
    assert plane.seconds(26, 90_000) == pytest.approx(0.002 + 3e-4 * 26 + 2e-6 * 90_000, rel=0.02)
    flat = Plane(KEEP, ENOUGH, SURPRISE, SHARPEST)
    for i in range(20):
        flat.observe(1, 1000 + i % 3, 0.005 + 0.001 * (i % 3))
    assert flat.seconds(26, 26_000) < 0.02


def test_neither_rows_nor_cells_ever_save_time():
    plane = Plane(KEEP, ENOUGH, SURPRISE, SHARPEST)
    for i in range(50):
        plane.observe(1 + i % 5, 1000 * (i % 7), 0.02 - 0.001 * (i % 5) - 0.001 * (i % 7))
    assert plane.seconds(60, 100_000) >= plane.seconds(1, 1000) >= 0.0


def test_what_was_learned_goes_on_after_a_restart():
    tiles, other = after_a_conversation(blocked), Tiles()
    assert other.recall(tiles.memory())
    assert other.memory() == tiles.memory()
    for n_rows, context in ((26, 3600), (40, 2000), (4, 1000), (26, 0)):
        assert padding(other, n_rows, context) == padding(tiles, n_rows, context)


@pytest.mark.parametrize(
    "spoilt",
    [
        None,
        [],
        {},
        [0.0] * 17,
        [1] * 18,
        ["a"] * 18,
        [math.nan] * 18,
        [math.inf] * 18,
        [-1.0] * 18,
        [1e300] * 18,
        [1e9, *[1.0] * 17],
        [10.0, 10.0, 10.0, 10.0, 0.0, 0.0, 0.0, 0.0, 0.0] * 2,
        [10.0, 10.0, 10.0, 1e9, 100.0, 100.0, 100.0, 1.0, 1.0] * 2,
        [10.0, 10.0, 10.0, 10.0, 100.0, 1e9, 100.0, 1.0, 1.0] * 2,
    ],
)
def test_numbers_that_nobody_can_have_seen_are_not_believed(spoilt: object):
    tiles = after_a_conversation(blocked)
    before = tiles.memory()
    assert not tiles.recall(spoilt)
    assert tiles.memory() == before


def test_nothing_seen_is_recalled_as_that():
    tiles = Tiles()
    assert tiles.recall(Tiles().memory())
    assert padding(tiles, 26, 3600) == 0


def test_a_decode_that_was_held_up_is_not_believed_for_long():
    """Four sessions at a time and nothing else, one decode of which took 20 s: the process was stopped."""
    tiles = after_a_conversation(plain)
    tiles.observe(4, cells(4, 1000), 20.0)
    n_padded = 0
    for i in range(1000):
        context = 200 + i % 800
        n_pad = padding(tiles, 4, context)
        n_padded += n_pad > 0
        tiles.observe(4 + n_pad, cells(4 + n_pad, context), plain(4 + n_pad, context))
    assert n_padded < 50


def test_now_and_then_few_rows_go_without():
    tiles = after_a_conversation(blocked)
    asked = [padding(tiles, 26, 3600) for _ in range(10 * PROBE)]
    assert asked.count(0) == 10
    assert asked.count(TILE - 26) == 10 * PROBE - 10
