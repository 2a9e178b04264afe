"""When a decode of few rows is quicker with more. Pure.

llama.cpp's flash attention on CPUs takes 64 rows at a time through a blocked matrix product, and fewer rows
one by one: beside some thousand tokens 26 rows can take three times as long as 64 (ggml-cpu's
`ggml_compute_forward_flash_attn_ext_f16`; docs/adr/0012). So a decode is padded to a tile if the latest
decodes say that it would take clearly longer than a whole tile.
"""

from __future__ import annotations

from collections.abc import Sequence

from server.estimators import N_NUMBERS, Plane, numbers

TILE = 64  # rows: GGML_FA_TILE_Q of ggml-cpu, on every CPU
# Of the past, per decode: about the last 200 count, which have contexts of many lengths. Off by two: 100, the
# plane tilts where all of them were alike; 400, another load of the machine shows after as many decodes.
KEEP = 0.995
# Decodes of either kind, by weight, before anything is padded. What 26 rows take is known to 4 percent then,
# if decodes scatter by 5 (simulated, as below). 2: to 9; 8: to 3.
ENOUGH = 4.0
WORTH = 1.15  # times as long: what too few rows must take at least, thrice that error. 1.3: up to 30% is lost
SLOWEST_S = 600.0  # more is not believed of a file,
SURPRISE = 4.0  # nor times as long as expected: a stopped process makes times 5 percent longer. 2: 2; 8: 11
# Decodes that a tile is better for; one of them is not padded: few rows may be quicker again. If they take
# three times as long, that costs 2 percent. 50: 4; 200: 1.
PROBE = 100
# Differences in rows and in cells, squared, below which a trend is not believed: 26 rows, learned from 8 and
# 9, are 9 percent off. Half the differences: 10; twice: 8.
SHARPEST = (1.0, 100.0**2)


class Tiles:
    """Learns from every decode of one model what few and many rows take."""

    def __init__(self) -> None:
        self._few = Plane(KEEP, ENOUGH, SURPRISE, SHARPEST)
        self._many = Plane(KEEP, ENOUGH, SURPRISE, SHARPEST, through_origin=True)
        self._n_better = 0

    def padding(self, n_rows: int, n_cells: int, longest: int) -> int:
        """Padding rows to add to n_rows, which attend to n_cells; longest: tokens in the longest context."""
        if not 1 < n_rows < TILE or not (self._few.is_known and self._many.is_known):
            return 0
        tile_s = self._many.seconds(TILE, TILE * longest)
        if self._few.seconds(n_rows, n_cells) <= WORTH * tile_s:
            return 0
        self._n_better += 1
        return TILE - n_rows if self._n_better % PROBE else 0

    def observe(self, n_rows: int, n_cells: int, seconds: float) -> None:
        """A decode of n_rows, padding included, took this long."""
        (self._few if n_rows < TILE else self._many).observe(n_rows, n_cells, seconds)

    def memory(self) -> list[float]:
        """What recall() takes after a restart."""
        return [*self._few.memory, *self._many.memory]

    def recall(self, memory: object) -> bool:
        """Continue from what memory() gave for this machine and model. False, with nothing changed, if that
        is not plausible."""
        known = numbers(memory)
        few, many = known[:N_NUMBERS], known[N_NUMBERS:]
        if len(known) != 2 * N_NUMBERS or not (_plausible(few) and _plausible(many)):
            return False
        self._few.recall(few)
        self._many.recall(many)
        return True


def _plausible(memory: Sequence[float]) -> bool:
    """Whether observe() can have given these: the weight is bounded, the square of a mean is at most the mean
    of squares, and no decode took longer than SLOWEST_S."""
    weight, n, m, t, nn, nm, mm, nt, mt = memory
    bounded = weight * (1.0 - KEEP) < 1.001 and t <= SLOWEST_S * weight
    bounded = bounded and nt <= SLOWEST_S * n * 1.001 and mt <= SLOWEST_S * m * 1.001
    squares = n * n <= 1.001 * weight * nn and m * m <= 1.001 * weight * mm and nm * nm <= 1.001 * nn * mm
    return bounded and squares
