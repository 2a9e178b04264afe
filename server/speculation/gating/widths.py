"""Steps of few widths, where a change of width costs more than rows do. Pure.

On such a machine (server/llama/shapes.py) a step is as quick as others of its width only after two of them:
the graph of the first is built anew, that of the second recorded. To come back to a step of one row, or to
the latest other width that was recorded, may cost less than to take another one (cuda_graphs.py). So steps
are padded to one of a few widths, and another one is taken once it would have gained, since the last change,
what the change costs: at once where one step gains as much. From plain steps that is the way there and back,
since guesses that look good follow each other less often than they seem to: with the way there alone hard
replies lost 2 percent more, and easy ones gained nothing (simulated, ADR 10). After a step of another shape,
with rows of a prompt, plain steps are a change, too, and what it costs to take a wider width then is spread
over as many steps as widths were kept for of late (section D of benchmarks/RESULTS.md, emulated). What a
draft model in the lead may lose by a change is bounded: by `most_s`, which the session's balance affords.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from server.estimators import Mean

SMOOTHING = 0.1  # weight of a measured time: nine tenths of a change show after 22 steps. 0.05: 45; 0.2: 11
# Weight for widths that are not measured: one that was twice as slow as at first is within 10 percent of that
# after 230 steps. 0.005: 460; 0.02: 120, so that a slow width is tried twice as often.
RECOVERY = 0.01
SETTLING = 2  # steps until one takes its usual time: the first builds the graph, the second records it
# Steps after a change. Off by two: half, one step that was disturbed shifts what a change costs by a fifth;
# twice, 20 changes pass before a cost that is too low shows.
WINDOW = 10
# Times that a width was kept for a single step, as is assumed at first. 1 or 4: new leads make as many tokens
# per second within 2 percent (30 prompts on the emulated GPUs of benchmarks.graphs).
FEW_STAYS = 2
PLAIN = 0  # the width of steps without guesses, which are not padded
# Changes: to steps of a single row, to the latest other width that was recorded, to another one.
SINGLE, KEPT, OTHER = "single", "kept", "other"


class Offered(NamedTuple):
    """probabilities[i]: that a guess is reached and right, best first. each_s: seconds that making one holds
    up the step."""

    probabilities: Sequence[float]
    each_s: float = 0.0


class Widths:
    """Chooses the width of steps."""

    def __init__(
        self, steady: Mapping[int, float], change_s: float = 0.0, single_s: float | None = None
    ) -> None:
        """steady: seconds of a decode by rows, among equal ones; none where padding does not pay. change_s:
        seconds that the first one after others takes longer; single_s: that one of a single row does."""
        self.steady = dict(sorted(steady.items()))
        self._at_first = dict(self.steady)
        kept_s = change_s if single_s is None else single_s
        self._change = {
            kind: [Mean(kept_s if kind != OTHER else change_s, 2, WINDOW) for _ in range(SETTLING)]
            for kind in (SINGLE, KEPT, OTHER)
        }
        self._stay = Mean(1.0, FEW_STAYS, WINDOW)  # steps in a row with one wider width
        self._n_stayed = 0  # steps of this width so far
        self._kept = 0  # rows of the latest two steps in a row that had several
        self._rows = [0] * SETTLING  # of the latest steps, the last one first
        self._n_rows = 0  # of sessions, for which the other widths are compared
        self._missed: dict[int, float] = {}  # tokens that each width would have gained since the last change
        self._rate = math.inf  # tokens per second that the latest choice went by
        self.width = PLAIN  # of the latest step that was planned
        # seconds that a wider step may take beyond a plain one, with the way there and back; set before each
        self.most_s = math.inf
        self._interrupted = False  # the latest step had another shape

    @property
    def pays(self) -> bool:
        """Whether padding can pay on this machine."""
        return bool(self.steady)

    @property
    def bounded(self) -> bool:
        """Whether what the next step may lose by a change is bounded. Then expected gains decide at once."""
        return self.most_s < math.inf

    def change_s(self, n_rows: int) -> float:
        """Seconds that a change to steps of n_rows rows costs: of the first step and of the second."""
        return sum(mean.value for mean in self._change[self._kind(n_rows)])

    def _share_s(self, width: int, current: int | None, n_rows: int) -> float:
        """change_s() to this width, spread over the steps that are likely to keep it. 0 for the current
        width, and for plain steps after a step of another shape."""
        if width == (current or PLAIN):
            return 0.0
        return self.change_s(width or n_rows) / self._stay.value

    def _kind(self, n_rows: int) -> str:
        return SINGLE if n_rows == 1 else KEPT if n_rows == self._kept else OTHER

    def is_settled(self, n_rows: int) -> bool:
        """Whether a step of n_rows rows takes its usual time now."""
        return all(rows == n_rows for rows in self._rows)

    def seconds(self, n_rows: int, plain_s: float, rate: float) -> list[float]:
        """Of the next step for 0, 1, … rows, n_rows of which are no guesses. A draft model in the lead
        decides by it how much to guess. After plain steps it has rows for guesses only in widths that have
        missed as much as there and back cost; after a prompt it has them in all, at a share of the change.
        plain_s: of a plain step among others. rate: tokens per second that time is worth."""
        current, back_s, rate = self._start(n_rows), self.change_s(n_rows), min(rate, self._rate)
        wider = self._wider(n_rows, plain_s, current)
        if current is None or self.bounded:
            best = [
                (w or n_rows, s + self._share_s(w, current, n_rows))
                for w, s in ((PLAIN, plain_s), *wider.items())
            ]
        elif current == PLAIN:
            open_to = {
                w: s
                for w, s in wider.items()
                if self._missed.get(w, 0.0) > rate * (self.change_s(w) + back_s)
            }
            best = [(n_rows, plain_s), *open_to.items()]
        else:
            changed = {w: s if w == current else s + self.change_s(w) for w, s in wider.items()}
            best = [(n_rows, plain_s + back_s), *changed.items()]
        seconds, least = list[float](), best[-1][1]
        for i in range(len(best) - 1, -1, -1):  # what costs more than something wider is padded
            least = min(least, best[i][1])
            best[i] = best[i][0], least
        for width, taken_s in best:
            seconds += [taken_s] * (width + 1 - len(seconds))
        return seconds

    def choose(self, n_rows: int, plain_s: float, offers: Sequence[Offered], rate: float) -> int:
        """The width of the next step: its rows with padding, or PLAIN. offers: the guesses beside
        n_rows rows, then those that a draft model would make with free rows. The latter count as missed, and
        never widen this step. rate: tokens per second that time is worth; at most those of the best step that
        these guesses allow, since more is the rate of another text (gate.py)."""
        current, back_s = self._start(n_rows), self.change_s(n_rows)
        wider = self._wider(n_rows, plain_s, current)
        steps = {width: _steps(offers, width - n_rows, s) for width, s in wider.items()}
        reached = [(n_rows + tokens) / seconds for each in steps.values() for tokens, seconds in each]
        plain = n_rows / plain_s if plain_s else math.inf
        rate = self._rate = min(rate, max([plain, *reached]))
        now, later = {PLAIN: -rate * plain_s}, {PLAIN: -rate * plain_s}
        for width, each in steps.items():
            # what guesses took is spent in any case now, but not in steps to come
            now[width] = each[0][0] - rate * self.steady[width]
            later[width] = max(tokens - rate * seconds for tokens, seconds in each)
        if current is None or self.bounded:
            best = max(now, key=lambda width: now[width] - rate * self._share_s(width, current, n_rows))
            if best != PLAIN:
                self._missed = {}
            return best
        best, most = current, 0.0
        for width in now:
            missed = self._missed.get(width, 0.0)
            self._missed[width] = max(0.0, missed + later[width] - later[current])
            more = now[width] - now[current]
            cost_s = (self.change_s(width) if width else 0.0) + (0.0 if width and current else back_s)
            surplus = missed + more - rate * cost_s
            if more > 0.0 and surplus > most:
                best, most = width, surplus
        if best != current:
            self._missed = {}
        return best

    def charge_s(self, width: int, n_rows: int) -> float:
        """Seconds of a change to this width and back to n_rows rows. 0 where most_s does not bound them."""
        return self._there_and_back_s(width, n_rows) if self.bounded else 0.0

    def _there_and_back_s(self, width: int, n_rows: int) -> float:
        """After a step of another shape plain steps are a change as well: only the way there counts."""
        current = self._start(n_rows)
        if width in (current, PLAIN):
            return 0.0
        return self.change_s(width) + (self.change_s(n_rows) if current == PLAIN else 0.0)

    def _wider(self, n_rows: int, plain_s: float, current: int | None) -> dict[int, float]:
        """Seconds of the steps that the next one may be, by their width."""
        longest_s = plain_s + self.most_s
        return {
            w: s
            for w, s in self.steady.items()
            if w > n_rows and (w == current or s + self._there_and_back_s(w, n_rows) <= longest_s)
        }

    def _start(self, n_rows: int) -> int | None:
        """The width that costs no change; None after a step of another shape, when all do. What was
        missed is forgotten with another number of rows."""
        if n_rows != self._n_rows:
            self._n_rows, self._missed, self._rate = n_rows, {}, math.inf
        if self._interrupted:
            return None
        return self.width if self.width > n_rows and self.width in self.steady else PLAIN

    def interrupted(self) -> None:
        """A step of another shape comes between, with rows of a prompt, say."""
        self._rows = [0] * SETTLING
        self._interrupted = True

    def planned(self, width: int) -> None:
        """The next step has this width; PLAIN: it is not padded."""
        if width == self.width and not self._interrupted:
            self._n_stayed += 1
        else:
            if self.width != PLAIN:
                self._stay.observe(self._n_stayed)
            self._n_stayed = 1
        self.width = width

    def stepped(self, n_rows: int, seconds: float) -> None:
        """The decode of a step without prompts, of n_rows rows with padding, took `seconds`."""
        place = next((i for i, rows in enumerate(self._rows) if rows != n_rows), None)
        self._rows = [n_rows, *self._rows[:-1]]
        self._interrupted = False
        known = self.steady.get(n_rows)
        if known is None:
            return
        if place is None:
            self._timed(n_rows, known, seconds)
        else:
            self._change[self._kind(n_rows)][place].observe(min(max(seconds - known, 0.0), known))
        if place != 0 and n_rows > 1:
            self._kept = n_rows

    def _timed(self, n_rows: int, known: float, seconds: float) -> None:
        """A step among equal ones. What made it longer than at first, a longer context above all, does so at
        other widths, too; the others also recover towards what they were at first."""
        now = self.steady[n_rows] = known + SMOOTHING * (min(seconds, 2.0 * known) - known)
        longer = now - self._at_first[n_rows]
        for other, first in self._at_first.items():
            if other != n_rows:
                self.steady[other] += RECOVERY * (first + longer - self.steady[other])


def _steps(offers: Sequence[Offered], n: int, decode_s: float) -> list[tuple[float, float]]:
    """Tokens that the first n guesses of each offer bring, and seconds of a step that makes them."""
    firsts = [(offer.probabilities[:n], offer.each_s) for offer in offers]
    return [(sum(first), decode_s + len(first) * each_s) for first, each_s in firsts]
