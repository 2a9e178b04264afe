"""Beam search: choose the continuations to follow, and detect the end of the search. Pure.

The rules are those of Hugging Face transformers' generate() with its defaults (length_penalty 1 and
early_stopping False). Live beams, all of one length, are compared by the sum of their logprobs. Ended beams
are compared by the mean over their tokens, the stop token included, since sums favour short texts (Wu et al.,
arXiv:1609.08144, section 7; Stahlberg and Byrne, arXiv:1908.10090). A beam ends when a stop token is among
the n best continuations. The search is over when n beams have ended and no live beam has a better mean than
the worst of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from server.cache.prefix import common_prefix
from server.engine.request import GenerationRequest
from server.sampling.constraint import Constraint
from server.sampling.logprobs import TokenLogprobs, token_logprobs
from server.sampling.params import SamplingParams

MAX_BEAMS = 8

Row: TypeAlias = npt.NDArray[np.float32]
Scores: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Beam:
    """A candidate reply of a beam search."""

    tokens: tuple[int, ...] = ()  # generated tokens
    score: float = 0.0  # sum of the tokens' logprobs
    logprobs: tuple[TokenLogprobs, ...] = ()
    constraint: Constraint | None = None  # has accepted the tokens; belongs to one live beam only

    @property
    def mean(self) -> float:
        return self.score / max(1, len(self.tokens))


@dataclass(frozen=True, slots=True)
class Continuation:
    """A beam with one more token."""

    parent: int  # index of the beam
    token: int
    score: float  # the beam's score with the token


def allowed_logprobs(
    row: Row, sampling: SamplingParams, n_generated: int, constraint: Constraint | None
) -> Scores:
    """Return logprobs, (vocab size,), from the logits `row`. Those of forbidden tokens are minus infinity.

    logit_bias changes the distribution. The constraint forbids tokens, as does min_tokens while n_generated
    is smaller. Both leave the logprobs of other tokens unchanged. If logit_bias and min_tokens exclude
    everything that the constraint allows, only the constraint applies.
    """
    edited = row.astype(np.float64)
    for token, bias in sampling.logit_bias:
        edited[token] += bias
    if not np.isfinite(edited.max()):
        edited = row.astype(np.float64)
    logprobs = _log_softmax(edited)
    if n_generated < sampling.min_tokens:
        logprobs[list(sampling.banned_first)] = -np.inf
    if constraint is None:
        return logprobs
    mask = constraint.mask()
    if not np.isfinite(logprobs[mask].max(initial=-np.inf)):
        logprobs = _log_softmax(row.astype(np.float64))
    return np.where(mask, logprobs, -np.inf)


def best(rows: Sequence[Scores], scores: Sequence[float], n: int) -> list[Continuation]:
    """Return the n best continuations of each beam, all in one list by score, then by beam and token id.

    Args:
        rows: Logprobs after each beam, (vocab size,) each.
        scores: Score of each beam.
        n: Maximum continuations to return for each beam.
    """
    found: list[Continuation] = []
    for parent, (row, score) in enumerate(zip(rows, scores, strict=True)):
        k = min(n, len(row))
        ids = np.flatnonzero((row >= np.partition(row, len(row) - k)[len(row) - k]) & (row > -np.inf))
        order = np.lexsort((ids, -row[ids]))[:k]
        found += [Continuation(parent, int(token), score + float(row[token])) for token in ids[order]]
    return sorted(found, key=lambda c: (-c.score, c.parent, c.token))


class BeamSearch:
    """The beams of one generation."""

    def __init__(self, request: GenerationRequest, limit: int) -> None:
        """Begin with one empty beam; beams end after `limit` tokens, which is at least 1."""
        self._request = request
        self._limit = limit
        self._ended: list[Beam] = []
        self.live = [Beam(constraint=self._constraint_after(()))]  # not ended, of one length, best first

    def advance(self, rows: Sequence[Row]) -> list[int]:
        """Replace the live beams by their best continuations of one token.

        Args:
            rows: Logits after each live beam.

        Returns:
            For each new live beam, the index of the old one that it continues.
        """
        n, stop, sampling = self._request.n_beams, self._request.stop_tokens, self._request.sampling
        allowed = [
            allowed_logprobs(row, sampling, len(beam.tokens), beam.constraint)
            for row, beam in zip(rows, self.live, strict=True)
        ]
        found = best(allowed, [beam.score for beam in self.live], n + len(stop))
        self._ended += [self._grown_beam(c, rows[c.parent]) for c in found[:n] if c.token in stop]
        chosen = [c for c in found if c.token not in stop][:n]
        grown = [self._grown_beam(c, rows[c.parent]) for c in chosen]
        if grown and len(grown[0].tokens) >= self._limit:
            self._ended, chosen, grown = self._ended + grown, [], []
        self._ended = sorted(self._ended, key=lambda beam: -beam.mean)[:n]
        self.live = self._with_constraints(chosen, grown)
        return [c.parent for c in chosen]

    @property
    def done(self) -> bool:
        if not self.live:
            return True
        return len(self._ended) == self._request.n_beams and self._ended[-1].mean >= self.live[0].mean

    def decided(self) -> Beam:
        """Return the best beam if the search is over, else the common beginning of all candidates."""
        if self.done:
            return self._ended[0]
        rivals = [beam.tokens for beam in [*self._ended[:1], *self.live]]
        n = min(common_prefix(rivals[0], tokens) for tokens in rivals)
        return Beam(rivals[0][:n], logprobs=self.live[0].logprobs[:n])

    def _grown_beam(self, one: Continuation, row: Row) -> Beam:
        parent, token = self.live[one.parent], one.token
        logprobs = parent.logprobs
        if self._request.n_logprobs is not None:
            logprobs = (*logprobs, token_logprobs(row, token, self._request.n_logprobs))
        return Beam((*parent.tokens, token), one.score, logprobs)

    def _with_constraints(self, chosen: Sequence[Continuation], grown: Sequence[Beam]) -> list[Beam]:
        """Return the beams in `grown`, each with a constraint that has accepted its tokens.

        chosen[i] is the continuation that led to grown[i]. Constraints cannot be copied: the last child of a
        beam inherits its constraint, the others get new ones.
        """
        heirs = {one.parent: i for i, one in enumerate(chosen)}
        beams: list[Beam] = []
        for i, (one, beam) in enumerate(zip(chosen, grown, strict=True)):
            constraint = self.live[one.parent].constraint
            if heirs[one.parent] == i and constraint is not None:
                constraint.accept(one.token)
            else:
                constraint = self._constraint_after(beam.tokens)
            beams.append(replace(beam, constraint=constraint))
        return beams

    def _constraint_after(self, tokens: Sequence[int]) -> Constraint | None:
        if self._request.constraint is None:
            return None
        constraint = self._request.constraint()
        for token in tokens:
            constraint.accept(token)
        return constraint


def _log_softmax(logits: Scores) -> Scores:
    top = logits.max()
    return logits - (top + np.log(np.exp(logits - top).sum()))
