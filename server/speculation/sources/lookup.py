"""Draft without a model: from text that repeats, other recent texts, or the client's prediction. Pure.

What followed the last occurrence of the last few tokens is likely to follow again. A guess costs
microseconds, so the lead makes it between two steps. Guesses of remote drafters would arrive too late there.

A guess here is (tokens, confidences). confidences[i] is the estimated probability of tokens[i] if all tokens
before it are right; it is learned for each length of match. None of the classes is thread-safe.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import count
from typing import TypeAlias

from server.speculation.hits import SESSION_WINDOW, WORD, RatesByKind

LookupGuess: TypeAlias = tuple[list[int], list[float]]

# Tokens of a match that is searched for. One token predicts next to nothing; longer matches are found by
# following these. With 3 alone, a drafter with lookups is 3 percent slower (benchmarks.clocked, r = 1.5, 400M
# BF16).
MIN_NGRAM, MAX_NGRAM = 2, 3
MAX_LENGTH = 32  # maximum tokens counted in a match: longer matches are not more reliable
TOKEN_BITS = 32  # bits of a token in an n-gram: ids have 31 in llama.cpp
POOL_TOKENS = 100_000  # tokens kept of other texts: 16 MB with the index


def match_rates() -> RatesByKind:
    """Return the hit rates of guesses by length of the match, as they are assumed at first.

    The rate assumed after a match of n tokens is n / (n + WORD). In 37 replies of 80 tokens to chat prompts,
    0.43 of the guesses were right after 2 tokens, 0.39 after 3, 0.38 after 4, 0.6 after 5. With this WORD,
    lookups alone reach 1.03 times the undrafted speed on two cores; with half or twice of it 0.99 (400M BF16,
    benchmarks.inside).
    """
    return RatesByKind([length / (length + WORD) for length in range(MAX_LENGTH + 1)], SESSION_WINDOW)


def rates_after(known: RatesByKind, length: int, n: int, least: float = 0.0) -> list[float]:
    """Return the hit rates of at most n guesses in a row that follow a match of `length` tokens.

    The list ends before the probability that all guesses are right falls below `least`. `known` has the rates
    by length of match.
    """
    found: list[float] = []
    path = 1.0
    for i in range(length, length + n):
        rate = known.rates[min(i, MAX_LENGTH)]
        path *= rate
        if path < least:
            break
        found.append(rate)
    return found


def grams(tokens: Sequence[int], n: int) -> Iterator[int]:
    """Yield the n-gram that ends with each token, from the n-th on, as a number.

    A number takes half the time of a tuple, and garbage collections need not scan it.
    """
    mask, gram = (1 << TOKEN_BITS * n) - 1, 0
    for i, token in enumerate(tokens, start=1):
        gram = gram_after(gram, token) & mask
        if i >= n:
            yield gram


def gram_after(gram: int, token: int) -> int:
    """Return the n-gram extended by a token; token + 1 keeps n-grams of different lengths distinct."""
    return gram << TOKEN_BITS | token + 1


class LookupPool:
    """Index of the latest texts of other sessions. When it is full, the oldest texts are dropped."""

    def __init__(self, max_tokens: int = POOL_TOKENS, ngram: int = MAX_NGRAM) -> None:
        self.ngram, self._mask = ngram, (1 << TOKEN_BITS * ngram) - 1
        self.rates = match_rates()  # shared by all who follow these texts
        self._max_tokens = max_tokens
        self._texts: list[list[int]] = []  # the oldest first
        self._begins: list[int] = []  # for each text: number of tokens in all texts before it
        self.n_tokens = 0
        self._ends: dict[int, int] = {}  # n-gram to the number of tokens up to its end, over all texts
        self._waiting: deque[list[int]] = deque()  # texts to index; the first is indexed up to _end
        self._end = ngram
        self._n_waiting = 0  # number of tokens in _waiting

    def add(self, tokens: Sequence[int]) -> None:
        """Add a finished text, to be indexed by index()."""
        text = list(tokens[-self._max_tokens :])
        if len(text) <= self.ngram:
            return
        self._waiting.append(text)
        self._n_waiting += len(text)
        while self._n_waiting > self._max_tokens:
            self._next_text()

    @property
    def is_behind(self) -> bool:
        """True if texts wait to be indexed."""
        return bool(self._waiting)

    def index(self, most: int) -> int:
        """Index at most `most` tokens of waiting texts, in 0.3 µs each; return how many."""
        left = most
        while self._waiting and left > 0:
            text, begin = self._waiting[0], self._end
            if begin == self.ngram:
                self._keep_text(text)
            self._end, before = min(len(text), begin + left), self._begins[-1]
            found = grams(text[begin - self.ngram : self._end - 1], self.ngram)
            self._ends.update(zip(found, count(before + begin), strict=False))
            left -= self._end - begin
            if self._end == len(text):
                self._next_text()
        return most - left

    def _next_text(self) -> None:
        """Drop the first waiting text, to index the next one from its beginning."""
        self._n_waiting -= len(self._waiting.popleft())
        self._end = self.ngram

    def _keep_text(self, text: list[int]) -> None:
        before = self._begins[-1] + len(self._texts[-1]) if self._texts else 0
        while self._texts and self.n_tokens + len(text) > self._max_tokens:
            self._forget_text(self._texts.pop(0), self._begins.pop(0))
        self._texts.append(text)
        self._begins.append(before)
        self.n_tokens += len(text)

    def find(self, gram: int) -> tuple[list[int], int] | None:
        """Return the latest text in which a token follows this n-gram, and the index of that token.

        Of an n-gram longer than the pool's, only the last tokens count. Return None if no text has it. The
        caller must not change the text.
        """
        at = self._ends.get(gram & self._mask)
        if at is None:
            return None
        i = bisect_right(self._begins, at) - 1
        return self._texts[i], at - self._begins[i]

    def _forget_text(self, text: list[int], before: int) -> None:
        self.n_tokens -= len(text)
        for end, gram in enumerate(grams(text[:-1], self.ngram), start=before + self.ngram):
            if self._ends.get(gram) == end:
                del self._ends[gram]


class Lookup:
    """Guesses what followed the last tokens of a growing sequence when they occurred before.

    A match is an earlier occurrence of the last tokens. It has at most max_ngram tokens when found, and grows
    while its guesses are right. The longest match counts, and the later of two equally long ones. If it is
    shorter than the n-grams of the pool, which holds other texts, a match in the pool replaces it.
    """

    def __init__(
        self, *, max_ngram: int = MAX_NGRAM, min_ngram: int = MIN_NGRAM, pool: LookupPool | None = None
    ) -> None:
        self._tokens: list[int] = []
        self._pool = pool
        self._gram = 0  # the n-gram of the last max_ngram tokens
        # for each length, shortest first: the length, the mask of its bits in _gram, and where each n-gram
        # ended last
        self._ends: list[tuple[int, int, dict[int, int]]] = [
            (n, (1 << TOKEN_BITS * n) - 1, {}) for n in range(min_ngram, max_ngram + 1)
        ]
        self._own_rates = match_rates()
        self._rates = self._own_rates  # hit rates of _text
        self._text = self._tokens  # the text with the match, from which guesses are taken
        self._at = 0  # index in _text of the next guess
        self._length = 0  # length of the match, which ends before _at; 0: there is none

    @property
    def n_tokens(self) -> int:
        return len(self._tokens)

    @property
    def follows(self) -> bool:
        """True if a match exists, so there may be a guess."""
        return self._length > 0

    def begins(self, tokens: list[int]) -> bool:
        """Return True if `tokens` begins with all tokens that were indexed so far."""
        return tokens[: len(self._tokens)] == self._tokens

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens, in 1.5 µs each; callers split a long prompt."""
        for token in tokens:
            followed = 0
            if self._length:
                hit = self._text[self._at] == token
                self._rates.observe((self._length, hit))
                followed = min(self._length + 1, MAX_LENGTH) if hit else 0
            self._tokens.append(token)
            self._gram = gram_after(self._gram, token) & self._ends[-1][1]
            self._match_text(followed)

    def guess(self, n: int, least: float = 0.0) -> LookupGuess:
        """Guess at most n next tokens, while the probability that all are right is at least `least`.

        Without a match, return no tokens.
        """
        if not self._length or n < 1:
            return [], []
        own = self._text is self._tokens
        most = n if own else min(n, len(self._text) - self._at)
        rates = rates_after(self._rates, self._length, most, least)
        guessed = self._text[self._at : self._at + len(rates)]
        while len(guessed) < len(rates):  # so short a repetition that its own continuation is guessed, too
            guessed += guessed[: len(rates) - len(guessed)]
        return guessed, rates

    def _match_text(self, followed: int) -> None:
        """Choose the text to guess from, after one more token.

        followed: How many of the latest tokens agree with the text guessed from so far; 0 if the newest token
            disagrees.
        """
        end, length = self._last_occurrence()
        at = self._at + 1
        if followed and at < len(self._text) and followed >= length:
            own = self._text is self._tokens
            if followed > length and not (own and self._agrees_before(end, followed)):
                self._at, self._length = at, followed
                return
            length = followed  # the most recent occurrence agrees in as much
        if length:
            self._follow_text(self._tokens, end, length, self._own_rates)
        else:
            self._length = 0
        if self._pool is not None and length < self._pool.ngram:
            found = self._pool.find(self._gram)
            if found is not None:
                self._follow_text(*found, self._pool.ngram, self._pool.rates)

    def _last_occurrence(self) -> tuple[int, int]:
        """Return the index after the previous occurrence of the text's last tokens, and their number.

        Of the n-grams at the text's end, the longest one that occurred before counts; return (0, 0) if none
        did. Also index these n-grams.
        """
        now, whole = len(self._tokens), self._gram
        end, length = 0, 0
        for n, mask, ends in self._ends:
            gram = whole & mask
            before = ends.get(gram)
            ends[gram] = now
            if before is not None:
                end, length = before, n
        return end, length

    def _agrees_before(self, end: int, length: int) -> bool:
        """Return True if the `length` tokens before index `end` equal the last ones of the text."""
        return end >= length and self._tokens[end - length : end] == self._tokens[-length:]

    def _follow_text(self, text: list[int], at: int, length: int, rates: RatesByKind) -> None:
        self._text, self._at, self._length, self._rates = text, at, length, rates


class PredictedReply:
    """Guesses from the reply that the client expects.

    When the actual reply differs, guesses continue as if one token had been replaced, until the last n-gram
    of the actual reply is found elsewhere in the expected reply.
    """

    def __init__(self, tokens: Sequence[int], *, ngram: int = MAX_NGRAM) -> None:
        self._text = list(tokens)
        self._ngram = ngram
        self._places: dict[tuple[int, ...], list[int]] = {}  # n-gram to where it ends, ascending
        for end in range(ngram, len(self._text)):
            self._places.setdefault(tuple(self._text[end - ngram : end]), []).append(end)
        self._tail: tuple[int, ...] = ()  # the last tokens of the actual reply
        self._at = 0
        self._synced = 0  # where an n-gram agreed last
        self._length = MAX_LENGTH  # tokens that agreed since the last divergence
        self._rates = match_rates()

    def extend(self, tokens: Sequence[int]) -> None:
        """Append committed tokens of the reply."""
        for token in tokens:
            hit = self._at < len(self._text) and self._text[self._at] == token
            if self._at < len(self._text):
                self._rates.observe((self._length, hit))
            self._tail = (*self._tail, token)[-self._ngram :]
            self._at += 1
            self._length = min(self._length + 1, MAX_LENGTH) if hit else 0
            if self._length < self._ngram:
                self._resynchronise()
            else:
                self._synced = self._at

    def guess(self, n: int, least: float = 0.0) -> LookupGuess:
        """Guess at most n next tokens, while the probability that all are right is at least `least`.

        At the end of the expected text, return no tokens.
        """
        rates = rates_after(self._rates, self._length, min(n, len(self._text) - self._at), least)
        return self._text[self._at : self._at + len(rates)], rates

    def _resynchronise(self) -> None:
        """Continue at a position where the expected text has the reply's last tokens.

        Of several such positions, take the first one after the difference, since texts are edited in order.
        If there is none, take the last one before the difference.
        """
        places = self._places.get(self._tail)
        if places:
            ahead = bisect_right(places, self._synced)
            self._at = self._synced = places[min(ahead, len(places) - 1)]
            self._length = self._ngram
