"""A drafter that knows the text and errs on purpose, for the virtual clock. Pure but for what it sends.

Its path is the text up to its next mistake, then nonsense: a drafter that has gone wrong goes on from its own
wrong token until it hears of the commit that contradicts it. At a share h of its mistakes it has the
correction ready: beside the wrong token it publishes the right one, and `branch` more tokens after it.

A lead that learns how often guesses come true must not learn to prefer corrections, so they look like what a
real drafter publishes: beside every token of the path there are as many runners-up, and most are wrong.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from benchmarks.strata import choices, gaps
from server.llama.fake import FakeVocabulary
from server.speculation.messages import (
    MAX_NODES,
    ROOT,
    Close,
    Commit,
    Draft,
    Message,
    Open,
    Refuse,
    chain_next,
)
from server.speculation.presence import Presence, vocabulary_card

SURE, DOUBTFUL = 255, 1  # confidences of its path and of its corrections
NONSENSE = ord("~")  # what the toy model never says, like the next
RUNNERS_UP = (ord("!"), ord("?"))


class Mistakes:
    """Where in a text the drafter errs, and at which of these places it has the correction ready."""

    def __init__(self, a: float, h: float, start: int, end: int, rng: Random) -> None:
        """Every position from start to end is wrong with probability 1 - a."""
        self.any_corrected = h > 0
        self._places: list[int] = []
        self._corrected: set[int] = set()
        position = start
        for gap, corrected in zip(gaps(a, rng), choices(h, rng), strict=False):
            position += gap
            if position >= end:
                break
            self._places.append(position)
            if corrected:
                self._corrected.add(position)
            position += 1

    def next(self, position: int) -> int | None:
        """The first mistake there or later."""
        i = bisect_left(self._places, position)
        return self._places[i] if i < len(self._places) else None

    def corrected(self, place: int) -> bool:
        return place in self._corrected


@dataclass(frozen=True, slots=True)
class Timer:
    """after(µs, action), and how long the drafter takes for a token."""

    after: Callable[[int, Callable[[], None]], None]
    td_us: int


@dataclass(frozen=True, slots=True)
class _Known:
    """What the session's Open said, and the chain hashes of the text's positions from `base` on."""

    session: int
    max_ahead: int
    base: int
    chains: Sequence[int]

    def chain(self, position: int) -> int:
        """After the text's first `position` tokens."""
        return self.chains[position - self.base]


class _Twigs:
    """The nodes of one message, as it grows."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.confidences: list[int] = []

    def add(self, token: int, parent: int, confidence: int) -> int:
        """Returns the new node's index."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.confidences.append(confidence)
        return len(self.tokens) - 1


class ReplayDrafter:
    """Serves one session. The path consists of the positions from `start` on, `n` of them so far."""

    def __init__(
        self, text: Sequence[int], mistakes: Mistakes, timer: Timer, *, branch: int, depth: int
    ) -> None:
        """depth: corrections of corrections published at once, so that several mismatches in a row find
        theirs ready even while messages travel. Raises ValueError when they do not fit in a message."""
        if branch * depth > MAX_NODES // 2 - len(RUNNERS_UP) - 1:
            raise ValueError(f"{depth} corrections of {branch} tokens do not fit in a message")
        self.presence = Presence("replay", "drafter", "text", "0", vocabulary_card(FakeVocabulary()), 1)
        self._text = text
        self._mistakes = mistakes
        self._timer = timer
        self._branch = branch
        self._depth = depth
        self._send: Callable[[Message], None] = lambda message: None
        self._known: _Known | None = None
        self._committed = self._start = self._n = 0
        self._chain = 0  # after the path
        self._run = 0  # counts changes of path: a token begun before one comes to nothing

    def connect(self, send: Callable[[Message], None]) -> None:
        self._send = send

    def received(self, message: Message) -> None:
        match message:
            case Open():
                chains = [message.chain]
                for token in self._text[len(message.tokens) :]:
                    chains.append(chain_next(chains[-1], token))
                base = len(message.tokens)
                self._known = _Known(message.session, message.max_ahead, base, chains)
                self._committed = base
                self._restart(base)
            case Commit():
                self._follow(message.base + len(message.tokens))
            case Close():
                self._known = None
                self._run += 1
            case Refuse():
                raise AssertionError(message.reason)
            case _:
                raise AssertionError(f"not for a drafter: {message}")

    # -- the path

    def _restart(self, start: int) -> None:
        """Begin a path there: the text before is committed."""
        self._start, self._n = start, 0
        self._run += 1
        if self._known:
            self._chain = self._known.chain(start)
        self._begin()

    def _begin(self) -> None:
        run = self._run
        if self._known and self._start + self._n < self._committed + self._known.max_ahead:
            self._timer.after(self._timer.td_us, lambda: self._drafted(run))

    def _drafted(self, run: int) -> None:
        """One more token of the path is there, unless the path changed meanwhile."""
        if run != self._run or not self._known:
            return
        position = self._start + self._n
        mistake = self._mistakes.next(self._start)
        twigs = _Twigs()
        twigs.add(self._token(position, mistake), ROOT, SURE)
        self._add_runners_up(twigs, ROOT, position, mistake)
        if position == mistake:
            self._add_correction(twigs, ROOT, position, self._depth)
        self._publish(position, self._chain, twigs)
        self._chain = chain_next(self._chain, twigs.tokens[0])
        self._n += 1
        self._begin()

    def _follow(self, committed: int) -> None:
        """The text up to there is committed."""
        paused = self._known and self._start + self._n >= self._committed + self._known.max_ahead
        self._committed = max(self._committed, committed)
        mistake = self._mistakes.next(self._start)
        switched = False
        while mistake is not None and mistake < committed and self._mistakes.corrected(mistake):
            self._start, self._n, switched = mistake + 1, self._branch, True
            mistake = self._mistakes.next(self._start)
        if (mistake is not None and mistake < committed) or self._start + self._n < committed:
            self._restart(committed)
        elif switched:
            self._run += 1
            self._republish(mistake)
            self._begin()
        elif paused:
            self._begin()

    def _republish(self, mistake: int | None) -> None:
        """The path is a former correction now: with more corrections of its own than it was sent with."""
        assert self._known is not None
        chain = self._chain = self._known.chain(self._start)
        for position in range(self._start, self._start + self._n):
            self._chain = chain_next(self._chain, self._token(position, mistake))
        twigs = _Twigs()
        self._add_chain(twigs, ROOT, self._start, self._depth)
        if twigs.tokens:
            self._publish(self._start, chain, twigs)

    # -- what is sent

    def _token(self, position: int, mistake: int | None) -> int:
        known = position < len(self._text) and (mistake is None or position < mistake)
        return self._text[position] if known else NONSENSE

    def _add_correction(self, twigs: _Twigs, parent: int, mistake: int, depth: int) -> None:
        """Beside the token at `mistake` the right one and what follows it, if that is ready."""
        if depth and self._mistakes.corrected(mistake):
            right = twigs.add(self._text[mistake], parent, DOUBTFUL)
            self._add_chain(twigs, right, mistake + 1, depth - 1)

    def _add_chain(self, twigs: _Twigs, parent: int, start: int, depth: int) -> None:
        """The `branch` tokens from `start` on, with the correction of the first mistake in them."""
        mistake = self._mistakes.next(start)
        for position in range(start, min(start + self._branch, len(self._text))):
            own = twigs.add(self._token(position, mistake), parent, SURE)
            self._add_runners_up(twigs, parent, position, mistake)
            if position == mistake:
                self._add_correction(twigs, parent, position, depth)
            parent = own

    def _add_runners_up(self, twigs: _Twigs, parent: int, position: int, mistake: int | None) -> None:
        if len(twigs.tokens) >= MAX_NODES // 2:  # the other half is for the corrections themselves
            return
        if self._mistakes.any_corrected and (mistake is None or position <= mistake):
            n = len(RUNNERS_UP) - (position == mistake and self._mistakes.corrected(position))
            for token in RUNNERS_UP[:n]:
                twigs.add(token, parent, DOUBTFUL)

    def _publish(self, base: int, chain: int, twigs: _Twigs) -> None:
        assert self._known is not None
        self._send(
            Draft(
                self.presence.id,
                self._known.session,
                base,
                chain,
                self._timer.td_us,
                tuple(twigs.parents),
                tuple(twigs.tokens),
                bytes(twigs.confidences),
            )
        )
