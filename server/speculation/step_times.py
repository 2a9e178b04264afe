"""Learn the seconds of a decode, by rows and by cells in use, from every step. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from server.estimators import Mean
from server.speculation.shape_times import WIDTH_WINDOW, ShapeTimes

# Observations in a median. Half: four disturbed ones in a row count as usual; twice: the effect of a longer
# context shows after 15 guesses, not 8
LATEST = 15
# Maximum difference of a step from the mean, as a share of the mean; a larger one is cut. So one interruption
# moves the mean by 3 percent. Twice: 6 percent; half: nine tenths of a doubled time are known after 40 steps,
# not 23.
MAX_CHANGE = 0.3
# Factor on calibrated times of several rows. With 1, a draft model beside 400M Q8_0 never guesses if
# calibrated times are 1.4 times too long (section X of benchmarks/RESULTS.md); with 0.8, widths are tried too
# often.
OPTIMISM = 0.9
# Steps after which a width's times are forgotten if no step had this width, so that calibrated ones count
# again. Otherwise wide steps of a busy moment would bar guesses for good: only wide steps show that they are
# quick again. Half: a width that is slower than calibrated is tried twice as often; twice: guesses pause for
# twice as long, 60 s where a step takes 30 ms.
FORGOTTEN = 1024
RENEWED = FORGOTTEN // 4  # steps between checks for times to forget, and checks whether guesses can pay
# Minimum share of a step's time that padding must save. Half: scatter causes padding in vain; twice: only the
# largest savings remain (400M: from 7 rows to 8 in Q8_0, 25 percent; from 15 to 16 in Q4_0, 22), not from 31
# rows to 32.
SAVES = 0.05
REFRESH = 8  # steps until a cached curve is made anew, in 72 us with 32 widths. 4: 18 us a step instead of 9


class StepTimes:
    """Seconds of a decode of 1 to max_rows rows, by number of cells in use.

    Numbers of cells are grouped in buckets: below 256, below 512, below 1024, and so on.
    """

    def __init__(
        self,
        max_rows: int,
        calibrated: Mapping[int, float] | None = None,
        shapes: ShapeTimes | None = None,
    ) -> None:
        """Begin with the times measured at the start.

        Args:
            max_rows: Maximum rows of a step without prompts.
            calibrated: Seconds by rows, for widths without a step yet.
            shapes: Times of a few widths, if a change of width costs more than rows do.
        """
        self.max_rows = max_rows
        self.shapes = shapes or ShapeTimes({})
        self._buckets: dict[int, dict[int, Mean]] = {}
        self._latest: dict[tuple[int, int], int] = {}  # bucket, rows: number of the latest step
        self._curves: dict[int, tuple[int, list[float]]] = {}  # bucket: when made, seconds
        self._now = 0
        self.calibrate(calibrated or {})

    def calibrate(self, seconds: Mapping[int, float]) -> None:
        """Replace the calibrated times by `seconds`, by rows; keep the times of observed steps."""
        self._calibrated = {r: s for r, s in seconds.items() if 0 < r <= self.max_rows}
        self._wider = _wider(self._calibrated)
        self._curves.clear()

    def observe(self, rows: int, n_cells: int, seconds: float) -> None:
        """Learn that a decode of `rows` rows, with n_cells cells in use, took `seconds`."""
        if not 0 < rows <= self.max_rows or seconds <= 0.0:
            return
        self._now += 1
        if not self._now % RENEWED:
            self._forget()
        bucket = _bucket(n_cells)
        timings = self._buckets.setdefault(bucket, {})
        timing = timings.get(rows)
        if timing is None:
            timings[rows] = Mean(seconds, 1, WIDTH_WINDOW)
        else:
            usual_s = timing.value
            timing.observe(min(max(seconds, (1 - MAX_CHANGE) * usual_s), (1 + MAX_CHANGE) * usual_s))
        self._latest[bucket, rows] = self._now

    def curve(self, n_cells: int) -> list[float]:
        """Return the seconds of a decode of 0 … max_rows rows with n_cells cells in use.

        They never decrease. All are 0.0 while no time is known.
        """
        bucket = _bucket(n_cells)
        made, curve = self._curves.get(bucket, (-REFRESH, []))
        if self._now - made >= REFRESH:
            curve = self._make(bucket)
            self._curves[bucket] = self._now, curve
        return curve

    def padded(self, n_rows: int, n_cells: int) -> int:
        """Return the rows to which a step of n_rows rows is padded because the wider decode is faster.

        Return n_rows if no padding pays. Calibration proposes a width. Once a step of that width with about
        n_cells cells was seen, two steps of n_rows rows must confirm that it saves time. Measured steps alone
        never propose a width: if other work had slowed the narrow steps, all later ones would be padded, and
        no step would show that the narrow ones are fast again. Where a change of width costs more than rows
        do, the plan sets the width, and this method never pads.
        """
        width = n_rows if self.shapes.pays else self._wider.get(n_rows, n_rows)
        here = self._buckets.get(_bucket(n_cells), {})
        if width == n_rows or width not in here:
            return width
        own = here.get(n_rows)
        pays = own is not None and own.count > 1 and here[width].value < (1 - SAVES) * own.value
        return width if pays else n_rows

    def undrafted_s(self, n_rows: int, curve: Sequence[float]) -> float:
        """Return the seconds of an undrafted step that follows steps of the same width.

        Args:
            n_rows: Rows of the step.
            curve: Seconds by number of rows, for machines on which a change of width costs nothing.
        """
        return self.shapes.steady.get(n_rows) or curve[min(n_rows, len(curve) - 1)]

    def by_guesses(self, n_rows: int, n_cells: int) -> Sequence[float]:
        """Return the seconds of a decode by rows, for a step that has n_rows rows besides guesses.

        If padding pays, more than n_rows rows take the time of the width to which they are padded.
        """
        seconds = self.curve(n_cells)
        if self.shapes.pays:
            seconds = seconds[: n_rows + 1]
            for width, taken_s in self.shapes.steady.items():
                seconds += [taken_s] * (width + 1 - len(seconds))
        return seconds

    def knows(self, rows: int) -> bool:
        """Return True if the time of a decode of `rows` rows is known, or rows > max_rows."""
        known = rows in self._calibrated or any(rows in timings for timings in self._buckets.values())
        return known or rows > self.max_rows

    def has_seen(self, n_cells: int) -> bool:
        """Return True if a decode with about n_cells cells in use was observed."""
        return _bucket(n_cells) in self._buckets

    def measured(self, rows: int, n_cells: int) -> float:
        """Return the mean seconds of decodes of `rows` rows with about n_cells cells; 0.0 if unknown."""
        timing = self._buckets.get(_bucket(n_cells), {}).get(rows)
        return timing.value if timing else 0.0

    def table(self) -> dict[int, float]:
        """Return seconds by rows: observed ones of the smallest context, else calibrated ones.

        Safe from any thread.
        """
        buckets = list(self._buckets)  # a list at once, as below: the engine's thread changes both dicts
        seen = list(self._buckets.get(min(buckets), {}).items()) if buckets else []
        return dict(sorted((self._calibrated | {rows: timing.value for rows, timing in seen}).items()))

    def _make(self, bucket: int) -> list[float]:
        seen = {rows: timing.value for rows, timing in self._buckets.get(bucket, {}).items()}
        elsewhere = self._elsewhere(bucket)
        if not seen and not elsewhere:
            return [0.0] * (self.max_rows + 1)
        curve = _interpolated(elsewhere or seen, self.max_rows)
        ratios = {rows: seconds / curve[rows] for rows, seconds in seen.items() if curve[rows] > 0.0}
        if ratios:  # scale the curve of another context by the ratios in this one
            scales = _lines(ratios, self.max_rows)
            curve = [seconds * scale for seconds, scale in zip(curve, scales, strict=True)]
        widened: list[float] = np.minimum.accumulate(curve[::-1])[::-1].tolist()
        return widened

    def _elsewhere(self, bucket: int) -> dict[int, float]:
        """Return seconds by rows: observed ones of the nearest other bucket, else calibrated ones.

        Calibrated times of several rows are lowered by OPTIMISM, because trying a width costs little, while
        never trying it may cost much.
        """
        found = {rows: s if rows == 1 else OPTIMISM * s for rows, s in self._calibrated.items()}
        for other in sorted(self._buckets, key=lambda b: -abs(b - bucket)):
            if other != bucket:
                found |= {rows: timing.value for rows, timing in self._buckets[other].items()}
        return found

    def _forget(self) -> None:
        """Forget times that no step has updated for FORGOTTEN steps."""
        since, latest = self._now - FORGOTTEN, self._latest
        for bucket, timings in list(self._buckets.items()):
            recent = {rows: timing for rows, timing in timings.items() if latest[bucket, rows] > since}
            if recent:
                self._buckets[bucket] = recent
            else:
                del self._buckets[bucket]


def _wider(calibrated: Mapping[int, float]) -> dict[int, int]:
    """Return the width to pad a step to, by the step's rows, where calibrated times say that padding pays."""
    found, last = dict[int, int](), max(calibrated, default=0)
    curve = _interpolated(calibrated, last) if calibrated else []
    for rows in range(1, last):
        width = min((w for w in calibrated if w >= rows), key=calibrated.__getitem__)
        if calibrated[width] < (1 - SAVES) * curve[rows]:
            found[rows] = width
    return found


def _bucket(n_cells: int) -> int:
    return (n_cells >> 8).bit_length()


def _interpolated(known: Mapping[int, float], max_rows: int) -> list[float]:
    """Return the seconds of 0 … max_rows rows, interpolated between the known ones.

    Each row beyond the largest known number adds as much as the known rows do on average.
    """
    first, last = min(known), max(known)
    row_s = max(0.0, known[last] - known[first]) / max(1, last - first)
    widest_s = known[last] + row_s * (max_rows - last)
    return _lines({0: 0.0, 1: known[first], max_rows: widest_s} | dict(known), max_rows)


def _lines(points: Mapping[int, float], end: int) -> list[float]:
    """Return values at 0, 1, … `end`, interpolated between `points` and constant outside of them."""
    places = sorted(points)
    values: list[float] = np.interp(range(end + 1), places, [points[place] for place in places]).tolist()
    return values
