"""Guess for a drafter's own model, as far as that pays, so that one of its decodes makes several tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean

from server.drafting.draft_session import GREEDY, DraftSession
from server.drafting.own_drafts import OwnDrafts
from server.engine.proposer import Ask, OpenedSession
from server.engine.request import Speculation
from server.estimators import Median
from server.sampling.draft_token import DraftGuess
from server.speculation import gain
from server.speculation.account import LOSS, GroupAccount
from server.speculation.drafter_host import OF_GROUP
from server.speculation.hits import HitRates, SessionHitRates
from server.speculation.sources.inline import InlineModel

# Guesses for a session in one decode: with the token before them 8 rows, up to which CUDA kernels of
# llama.cpp read weights once for all rows. Twice: 16 rows take longer there; half: where nine in ten are
# right, a decode makes 3.4 tokens instead of 5.7.
MOST_OWN = 7
# Maximum tokens of texts that the guessing model reads before one decode of the drafter's model. Half: it
# guesses after twice as many decodes; twice: these wait longer.
OWN_SLICE_ROWS = 128
# Decodes without guesses whose median time counts, and the number that must be known first. Half: one slow
# decode makes guesses look good; twice: a longer context shows after 15 more.
PLAIN_ROUNDS, PLAIN_KNOWN = 15, 4


@dataclass(slots=True)
class _OwnSession:
    """A session as the model that guesses knows it."""

    opened: OpenedSession
    n_opened: int  # its Open messages when the guessing model was told of it
    hits: SessionHitRates
    guesses: list[DraftGuess] = field(default_factory=list[DraftGuess])  # for this decode
    sure: float = 1.0  # probability that all guesses are right


class Cascade(OwnDrafts):
    """Has a smaller model, a prediction block, a head or lookups guess for the drafter's model."""

    def __init__(self, model: InlineModel, steady: Mapping[int, float], *, one_shape: bool = False) -> None:
        """Begin without sessions.

        Args:
            model: What guesses.
            steady: Seconds of a decode of the drafter's model by rows, as measured; {}: rows cost nothing.
            one_shape: A change of width costs more than rows, so all decodes with guesses have one width.
        """
        self._model = model
        widest = max(steady, default=1)
        more_s = max(0.0, steady[widest] - steady[1]) if widest > 1 else 0.0
        self._wide_s, self._row_s = (more_s, 0.0) if one_shape else (0.0, more_s / max(1, widest - 1))
        self.width = 1 + MOST_OWN if one_shape else 0
        self._accounts = GroupAccount(OF_GROUP)
        self._hits = HitRates()
        self._followed: dict[int, _OwnSession] = {}
        self._plain: dict[int, Median] = {}  # seconds of a decode without guesses, by sessions
        self._guessed: dict[int, Median] = {}  # the same with guesses, without the seconds for each of them
        self._n_asked = 0  # most guesses for one session in the last decode
        self._probe_s = 0.0  # seconds left for guesses that do not seem to pay
        self._has_read = False  # the model read a slice of a text, so that this decode took longer
        self.n_verified = self.n_right = 0

    def pays(self, sessions: Sequence[DraftSession]) -> bool:
        n = len(sessions)
        plain = self._plain.get(n)
        if not n or plain is None or plain.count < PLAIN_KNOWN or not self._accounts.of(n).is_active:
            return False
        return self._best_guess_count(sessions)[0] > 0 or self._probe_s > self._model.td.value

    def propose(
        self, sessions: Sequence[DraftSession], rooms: Sequence[int], seqs: Sequence[int], *, likeliest: bool
    ) -> dict[int, list[int]]:
        if not self.pays(sessions):
            return {}
        most, rate = self._best_guess_count(sessions)
        if not most:
            self._probe_s -= self._model.td.value
        going, left = dict[int, int](), OWN_SLICE_ROWS
        for session, room, seq in zip(sessions, rooms, seqs, strict=True):
            self._follow_session(session, seq, likeliest=likeliest)
            if self._model.behind(session.id):
                left -= self._model.read(session.id, left)
            elif room > 0:
                going[session.id] = min(room, MOST_OWN, self._model.most) if most else 1
        self._has_read = left < OWN_SLICE_ROWS
        self._guess_round(going, rate if most else 0.0, len(sessions))
        return {id: [one.token for one in found] for id in going if (found := self._followed[id].guesses)}

    def _best_guess_count(self, sessions: Sequence[DraftSession]) -> tuple[int, float]:
        """Return the number of guesses with the most tokens per second of a session, and that rate."""
        n, source = len(sessions), self._model.source
        known = [one.hits for session in sessions if (one := self._followed.get(session.id))]
        right = mean(hits.mean(source) for hits in known) if known else self._hits.mean(source)
        plain_s, each_s = self._plain[n].value, self._each_s(n)
        tokens = [1.0 + brought for brought in gain.chain(right, min(MOST_OWN, self._model.most))]
        known_s = self._guessed.get(n)
        first_s = known_s.value if known_s else plain_s + self._wide_s
        seconds = [plain_s, *(first_s + k * each_s for k in range(1, len(tokens)))]
        rate = gain.reached(tokens, seconds)
        return gain.best(tokens, seconds, rate)[0], rate

    def _each_s(self, n_sessions: int) -> float:
        """Return the seconds that a guess for each session takes to make and to verify."""
        return self._model.td.value + n_sessions * self._row_s

    def _follow_session(self, session: DraftSession, seq: int, *, likeliest: bool) -> None:
        """Tell the model what the session's tokens are now."""
        sampling = GREEDY if likeliest else session.sampling
        known = self._followed.get(session.id)
        if known and (known.n_opened, known.opened.sampling) != (session.n_opened, sampling):
            self._model.close(session.id, keep=True)
            known = None
        if known is None:
            salt = Speculation(salt=session.salt)
            opened = OpenedSession(session.id, session.tokens, sampling, salt, session.n_dropped)
            known = _OwnSession(opened, session.n_opened, SessionHitRates(self._hits))
            self._followed[session.id] = known
        ask = Ask(session.id, MOST_OWN, n_pending=len(session.pending), seq=seq)
        self._model.follow(known.opened, ask, n_firm=session.n_committed)
        known.guesses, known.sure = [], 1.0

    def _guess_round(self, going: Mapping[int, int], rate: float, n_sessions: int) -> None:
        """Guess for the sessions in `going`, up to its number for each, while that is worth its time."""
        source, live = self._model.source, dict(going)
        while live:
            cost = rate * n_sessions * (self._model.td.value / len(live) + self._row_s)
            for id, most in list(live.items()):
                one = self._followed[id]
                if len(one.guesses) == most or one.sure * one.hits.mean(source) <= cost:
                    del live[id]
            for id, guess in zip(list(live), self._model.guess(list(live), second=False), strict=True):
                if guess is None:
                    del live[id]
                    continue
                one = self._followed[id]
                one.guesses.append(guess)
                one.sure *= one.hits.probability(source, int(255 * guess.confidence))
        self._n_asked = max((len(self._followed[id].guesses) for id in going), default=0)

    def learn(self, session: int, n_right: int, n_judged: int) -> None:
        one, source = self._followed[session], self._model.source
        for i, guess in enumerate(one.guesses[:n_judged]):
            one.hits.observe(source, int(255 * guess.confidence), i < n_right, best=True)
        self.n_verified += len(one.guesses)
        self.n_right += min(n_right, len(one.guesses))

    def book(self, n_sessions: int, n_tokens: int, seconds: float, *, guessed: bool) -> None:
        has_read, self._has_read = self._has_read, False
        if has_read:
            return
        plain = self._plain.setdefault(n_sessions, Median(PLAIN_ROUNDS))
        self._probe_s = min(self._probe_s + LOSS * seconds, self._model.td.value + seconds)
        account = self._accounts.of(n_sessions)
        if guessed:
            rest_s = max(0.0, seconds - self._n_asked * self._each_s(n_sessions))
            self._guessed.setdefault(n_sessions, Median(PLAIN_ROUNDS)).observe(rest_s)
            account.book(n_tokens / n_sessions - seconds / plain.value)
            return
        plain.observe(seconds)
        if not account.is_active:
            account.wait()

    def close(self, session: int, *, keep: bool) -> None:
        if self._followed.pop(session, None):
            self._model.close(session, keep=keep)

    def report(self) -> str:
        if not self.n_verified:
            return ""
        return (
            f"{self.n_right} of {self.n_verified} own drafts accepted ({self.n_right / self.n_verified:.2f})"
        )
