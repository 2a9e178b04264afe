"""Forecast how long a text takes with drafts made elsewhere. Replays its steps with measured times. Pure.

A reply is a list of guesses, one for each token after the first. A guess says whether the draft model, given
the text before, names the target's token, and with what confidence. A chain of guesses is right up to the
first wrong one. So one evaluation of a reply by both models shows what any way of drafting would gain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import NamedTuple, TypeAlias

from server.speculation.gain import best, reached

MAX_GUESSES = 16  # guesses verified in a step: --draft-max
# Number of times that a schedule is replayed. Each replay chooses guesses by the seconds per token of the
# previous one. With one replay less, results are up to 2 percent off; one more changes nothing visible.
PASSES_OF_FORECAST = 3


class Guess(NamedTuple):
    """A guess of the draft model, with its confidence."""

    right: bool
    confidence: float


Text: TypeAlias = Sequence[Sequence[Guess]]
"""Replies, each by its guesses."""
Seconds: TypeAlias = Sequence[float]
"""Seconds of a step of the target, by its number of rows from 0 to MAX_GUESSES + 1."""
Schedule: TypeAlias = Callable[[Sequence[Guess], float], float]
"""Returns the seconds of a reply, given its guesses and the seconds that a token is worth."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device that drafts."""

    guess_s: float  # seconds that a guess takes
    latency_s: float = 0.0  # seconds from the device to the lead


def n_tokens(text: Text) -> int:
    return sum(map(len, text))


def undrafted(text: Text, seconds: Seconds) -> float:
    """Return the seconds to make the text without drafts, given the seconds of a step by its rows."""
    return n_tokens(text) * seconds[1]


def inside(text: Text, seconds: Seconds, guess_s: float, read_s: float = 0.0) -> float:
    """Return the seconds to make the text if the draft model is in the lead and the target waits for it.

    Args:
        text: The replies, with what the draft model guessed.
        seconds: Seconds of a step, by its number of rows.
        guess_s: Seconds of a guess.
        read_s: Seconds for the draft model to read a reply's prompt.
    """
    return _text_seconds(
        text, seconds, lambda reply, worth_s: read_s + _inside_step(reply, seconds, guess_s, worth_s)
    )


def beside(text: Text, seconds: Seconds, device: Device) -> float:
    """Return the seconds to make the text if a drafter on `device` works while the target does."""
    return _text_seconds(text, seconds, lambda reply, worth_s: _beside_step(reply, seconds, device, worth_s))


def _text_seconds(text: Text, seconds: Seconds, schedule: Schedule) -> float:
    undrafted_s = undrafted(text, seconds)
    found = undrafted_s
    for _ in range(PASSES_OF_FORECAST):
        worth_s = found / max(1, n_tokens(text))
        found = min(undrafted_s, sum(schedule(reply, worth_s) for reply in text))
    return found


def _chosen_count(guesses: Sequence[Guess], seconds: Seconds, worth_s: float, guess_s: float = 0.0) -> int:
    """Return how many guesses a step should verify, given the confidence of all guesses.

    Args:
        guesses: The guesses after the committed tokens.
        seconds: Seconds of a step, by its number of rows.
        worth_s: Seconds per token of the whole text: a further guess must not cost more per token gained.
        guess_s: Seconds of a guess inside the step.
    """
    paths = accumulate((guess.confidence for guess in guesses[:MAX_GUESSES]), mul)
    tokens = list(accumulate(paths, initial=1.0))
    spent_s = [rows_s + n * guess_s for n, rows_s in enumerate(seconds[1:])]
    return best(tokens, spent_s, min(1 / worth_s, reached(tokens, spent_s)))[0]


def _n_accepted(guesses: Sequence[Guess], n: int) -> int:
    return next((i for i in range(n) if not guesses[i].right), n)


def _inside_step(guesses: Sequence[Guess], seconds: Seconds, guess_s: float, worth_s: float) -> float:
    total, at = 0.0, 0
    while at < len(guesses):
        ahead = guesses[at : at + MAX_GUESSES]
        n = _chosen_count(ahead, seconds, worth_s, guess_s)
        total += n * guess_s + seconds[n + 1]
        at += _n_accepted(ahead, n) + 1
    return total


def _beside_step(guesses: Sequence[Guess], seconds: Seconds, device: Device, worth_s: float) -> float:
    drafter = _Drafter(guesses, device)
    now, at = 0.0, 0
    while at < len(guesses):
        n_here = drafter.arrived(at, now)
        ahead = guesses[at : at + n_here]
        n = _chosen_count(ahead, seconds, worth_s)
        now += seconds[n + 1]
        at += _n_accepted(ahead, n) + 1
        drafter.hears(at, now)
    return now


class _Drafter:
    """Simulates a drafter. After a wrong guess it makes no guesses until it has heard the right token."""

    def __init__(self, guesses: Sequence[Guess], device: Device) -> None:
        self._guesses = guesses
        self._device = device
        self._ready = device.latency_s  # time in seconds when it can begin its next guess
        self._next = 0  # index of the token that it guesses next
        self._lost = False  # its latest guess was wrong, and it has not heard of that
        self._arrivals: dict[int, float] = {}

    def arrived(self, at: int, now: float) -> int:
        """Return how many guesses from token `at` on have arrived by `now`, up to the first wrong one."""
        n = 0
        while n < MAX_GUESSES and self._arrival_time(at + n) <= now:
            n += 1
            if not self._guesses[at + n - 1].right:
                break
        return n

    def _arrival_time(self, place: int) -> float:
        while self._next <= place < len(self._guesses) and not self._lost:
            self._ready += self._device.guess_s
            self._arrivals[self._next] = self._ready + self._device.latency_s
            self._lost = not self._guesses[self._next].right
            self._next += 1
        return self._arrivals.get(place, float("inf"))

    def hears(self, at: int, now: float) -> None:
        """Note that the lead has committed all tokens before token `at`, at the time `now` in seconds."""
        passed = self._next - 1 < at if self._lost else self._next < at
        if passed:
            self._next = at
            self._lost = False
            self._ready = max(self._ready, now + self._device.latency_s)
