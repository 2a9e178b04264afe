"""When a decode of few rows is quicker with more. Pure.

llama.cpp's flash attention on CPUs takes 64 rows at a time through a blocked matrix product, and fewer rows
one by one: beside some thousand tokens 26 rows can take three times as long as 64 (ggml-cpu's
`ggml_compute_forward_flash_attn_ext_f16`; docs/adr/0012). So a decode is padded to a tile if the latest
decodes say that it would take clearly longer than a whole tile.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

TILE = 64  # rows: GGML_FA_TILE_Q of ggml-cpu, on every CPU
KEEP = 0.995  # factor of the past's weight per decode: about the last 200 count
ENOUGH = 4.0  # decodes of either kind, by weight, before anything is padded
WORTH = 1.15  # times a tile: what few rows must take at least, since estimates are wrong by some percent
SLOWEST_S = 600.0  # seconds of a decode: more is a damaged memory
SURPRISE = 4.0  # times the expected seconds, which count instead of more: the process was stopped, say
PROBE = 100  # decodes: one of them is not padded, so that the estimate for few rows can be corrected
SHARPEST = (1.0, 100.0**2)  # variances of rows and of cells below which a trend is noise
N_NUMBERS = 9  # of a plane's memory


class Plane:
    """Seconds of a decode as a + b · rows + c · cells, by least squares over the latest decodes; cells: those
    that its rows attend to, added up. Neither b nor c is below 0. through_origin: a is 0.

    memory: weight; sums of rows, cells, seconds; of rows², rows · cells, cells², rows · s, cells · s."""

    def __init__(self, *, through_origin: bool) -> None:
        self._origin = through_origin
        self.recall([0.0] * N_NUMBERS)

    @property
    def is_known(self) -> bool:
        return self.memory[0] >= ENOUGH

    def observe(self, rows: float, cells: float, seconds: float) -> None:
        if self.is_known:
            mean_s = self.memory[3] / self.memory[0]
            seconds = min(seconds, SURPRISE * max(self.seconds(rows, cells), mean_s))
        products = (rows * rows, rows * cells, cells * cells, rows * seconds, cells * seconds)
        news = (1.0, rows, cells, seconds, *products)
        self.recall([KEEP * old + new for old, new in zip(self.memory, news, strict=True)])

    def seconds(self, rows: float, cells: float) -> float:
        """The estimate for a decode."""
        if self._fit is None:
            self._fit = self._solved()
        a, b, c = self._fit
        return a + b * rows + c * cells

    def recall(self, memory: list[float]) -> None:
        self.memory = memory
        self._fit: tuple[float, float, float] | None = None

    def _solved(self) -> tuple[float, float, float]:
        n, m, t, nn, nm, mm, nt, mt = (x / self.memory[0] for x in self.memory[1:])
        if self._origin:
            n = m = t = 0.0
        nn, nm, mm, nt, mt = nn - n * n, nm - n * m, mm - m * m, nt - n * t, mt - m * t
        nn, mm = nn + SHARPEST[0], mm + SHARPEST[1]
        scale = nn * mm - nm * nm
        b, c = (nt * mm - mt * nm) / scale, (mt * nn - nt * nm) / scale
        if b < 0.0:
            b, c = 0.0, max(0.0, mt / mm)
        elif c < 0.0:
            b, c = max(0.0, nt / nn), 0.0
        return t - b * n - c * m, b, c


class Tiles:
    """Learns from every decode of one model what few and many rows take."""

    def __init__(self) -> None:
        self._few = Plane(through_origin=False)
        self._many = Plane(through_origin=True)
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
        known = _numbers(memory)
        few, many = known[:N_NUMBERS], known[N_NUMBERS:]
        if len(known) != 2 * N_NUMBERS or not (_plausible(few) and _plausible(many)):
            return False
        self._few.recall(few)
        self._many.recall(many)
        return True


def _numbers(memory: object) -> list[float]:
    """A list of finite numbers that are not negative; anything else as an empty one."""
    found = cast(list[Any], memory) if isinstance(memory, list) else []
    return found if all(isinstance(one, float) and 0.0 <= one < math.inf for one in found) else []


def _plausible(memory: Sequence[float]) -> bool:
    """Whether observe() can have given these: the weight is bounded, the square of a mean is at most the mean
    of squares, and no decode took longer than SLOWEST_S."""
    weight, n, m, t, nn, nm, mm, nt, mt = memory
    bounded = weight * (1.0 - KEEP) < 1.001 and t <= SLOWEST_S * weight
    bounded = bounded and nt <= SLOWEST_S * n * 1.001 and mt <= SLOWEST_S * m * 1.001
    squares = n * n <= 1.001 * weight * nn and m * m <= 1.001 * weight * mm and nm * nm <= 1.001 * nn * mm
    return bounded and squares
