"""Beam search: which of many continuations to follow, and when the likeliest is known. Pure.

The rules are those of Hugging Face transformers' generate() with its defaults (length_penalty 1 and
early_stopping False): beams of one length are compared by summed logprob, ended ones by the mean over their
tokens, the stop token included, since sums favour short texts (Wu et al., arXiv:1609.08144, section 7;
Stahlberg and Byrne, arXiv:1908.10090). A beam ends when a stop token is among the n best continuations. The
search is over when n beams have ended and the best of those that go on has no better mean than the worst of
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from server.engine.request import GenerationRequest
from server.sampling.constraint import Constraint
from server.sampling.logprobs import TokenLogprobs, token_logprobs
from server.sampling.params import SamplingParams

MAX_BEAMS = 8

Row: TypeAlias = npt.NDArray[np.float32]
Scores: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Beam:
    """tokens: what it has generated; score: the sum of their logprobs. constraint is past all of them; it is
    the only part that changes, and belongs to one live beam."""

    tokens: tuple[int, ...] = ()
    score: float = 0.0
    logprobs: tuple[TokenLogprobs, ...] = ()
    constraint: Constraint | None = None

    @property
    def mean(self) -> float:
        return self.score / max(1, len(self.tokens))


@dataclass(frozen=True, slots=True)
class Candidate:
    """One more token for the beam with the index `parent`, and the score that it has then."""

    parent: int
    token: int
    score: float


def allowed_logprobs(
    row: Row, sampling: SamplingParams, n_generated: int, constraint: Constraint | None
) -> Scores:
    """(vocab size,): logprob of each token, minus infinity where it may not follow. logit_bias changes the
    distribution; min_tokens and the constraint only forbid, so that scores remain the model's opinion of a
    text. A constraint that leaves nothing beside the other two alone counts."""
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
    masked = np.where(mask, logprobs, -np.inf)
    return (
        masked if np.isfinite(masked.max()) else np.where(mask, _log_softmax(row.astype(np.float64)), -np.inf)
    )


def best(rows: Sequence[Scores], scores: Sequence[float], n: int) -> list[Candidate]:
    """The n best of each row together, best first; equals by beam, then by token id. scores: of the beams."""
    found: list[Candidate] = []
    for parent, (row, score) in enumerate(zip(rows, scores, strict=True)):
        k = min(n, len(row))
        ids = np.flatnonzero((row >= np.partition(row, len(row) - k)[len(row) - k]) & (row > -np.inf))
        order = np.lexsort((ids, -row[ids]))[:k]
        found += [Candidate(parent, int(token), score + float(row[token])) for token in ids[order]]
    return sorted(found, key=lambda c: (-c.score, c.parent, c.token))


class BeamSearch:
    """The beams of one generation. live: those that go on, best first, all of one length."""

    def __init__(self, request: GenerationRequest, limit: int) -> None:
        """limit: most tokens of a beam, at least 1; those that reach it end there."""
        self._request = request
        self._limit = limit
        self._ended: list[Beam] = []
        self.live = [Beam(constraint=self._constraint_after(()))]

    def advance(self, rows: Sequence[Row]) -> list[int]:
        """One more token for every live beam. rows: logits after each of them. Returns, for each of the new
        live beams, the index of the one that it continues."""
        n, stop, sampling = self._request.n_beams, self._request.stop_tokens, self._request.sampling
        allowed = [
            allowed_logprobs(row, sampling, len(beam.tokens), beam.constraint)
            for row, beam in zip(rows, self.live, strict=True)
        ]
        candidates = best(allowed, [beam.score for beam in self.live], n + len(stop))
        self._ended += [self._grown(c, rows[c.parent]) for c in candidates[:n] if c.token in stop]
        chosen = [c for c in candidates if c.token not in stop][:n]
        grown = [self._grown(c, rows[c.parent]) for c in chosen]
        if grown and len(grown[0].tokens) >= self._limit:
            self._ended, chosen, grown = self._ended + grown, [], []
        self._ended = sorted(self._ended, key=lambda beam: -beam.mean)[:n]
        self.live = self._constrained(chosen, grown)
        return [c.parent for c in chosen]

    @property
    def done(self) -> bool:
        if not self.live:
            return True
        return len(self._ended) == self._request.n_beams and self._ended[-1].mean >= self.live[0].mean

    def decided(self) -> Beam:
        """What the result begins with: all that can still be it have it in common. When done, the result."""
        if self.done:
            return self._ended[0]
        rivals = [beam.tokens for beam in [*self._ended[:1], *self.live]]
        shortest, n = min(map(len, rivals)), 0
        while n < shortest and len({tokens[n] for tokens in rivals}) == 1:
            n += 1
        return Beam(rivals[0][:n], logprobs=self.live[0].logprobs[:n])

    def _grown(self, candidate: Candidate, row: Row) -> Beam:
        parent, token = self.live[candidate.parent], candidate.token
        logprobs = parent.logprobs
        if self._request.n_logprobs is not None:
            logprobs = (*logprobs, token_logprobs(row, token, self._request.n_logprobs))
        return Beam((*parent.tokens, token), candidate.score, logprobs)

    def _constrained(self, chosen: Sequence[Candidate], grown: Sequence[Beam]) -> list[Beam]:
        """The same with constraints: the last child of a beam takes its constraint over, the others begin
        anew, since a constraint cannot be copied."""
        if self._request.constraint is None:
            return list(grown)
        heirs = {candidate.parent: i for i, candidate in enumerate(chosen)}
        beams: list[Beam] = []
        for i, (candidate, beam) in enumerate(zip(chosen, grown, strict=True)):
            constraint = self.live[candidate.parent].constraint
            if heirs[candidate.parent] == i and constraint is not None:
                constraint.accept(candidate.token)
            else:
                constraint = self._constraint_after(beam.tokens)
            beams.append(Beam(beam.tokens, beam.score, beam.logprobs, constraint))
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
