"""Apply all sampling parameters of a request, for one generation.

The order is llama.cpp's (common/sampling.cpp): logit bias, then the chain of samplers in the request's order
(or mirostat instead), then the draw. A grammar checks only the drawn token. If the token is not allowed, the
row is masked and a second token is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from server.sampling import candidates as filters
from server.sampling.candidates import Candidates
from server.sampling.constraint import Constraint
from server.sampling.draw import Distribution, Row, distribution, draw
from server.sampling.dry import Dry
from server.sampling.filling import infill
from server.sampling.mirostat import Mirostat
from server.sampling.noise import uniform
from server.sampling.params import MIRRORED, SamplingParams
from server.sampling.penalties import Penalties

NO_NUMBERS = "no token has a finite logit"
XTC = 0x787463  # the purpose of the number that decides whether xtc acts at a position


class _Pick(NamedTuple):
    """A drawn token, and the values that are checked or learned when it is committed."""

    token: int
    logit: float  # logit of the token, after edits
    surprise: float = 0.0  # in bits, for mirostat


class Sampler:
    """Draws the tokens of one generation, in order.

    A token depends only on its row, its position, the parameters and the committed tokens before it. All ids
    in the parameters must be in the vocabulary. If no token has a finite logit, a draw raises an exception
    such as ValueError.
    """

    def __init__(self, params: SamplingParams, history: Sequence[int], constraint: Constraint | None):
        """Begin a generation after the prompt `history`, which is copied as far as it is needed."""
        self._params = params
        self._constraint = constraint
        self._direct = params.is_plain and constraint is None
        self._generated = 0
        steps = params.steps() if params.mirostat == 0 else ()
        self._penalties = Penalties(params, history) if "penalties" in steps else None
        self._dry = Dry(params, history) if "dry" in steps else None
        self.mirostat = Mirostat(params) if params.mirostat else None
        n_edits = next((i for i, name in enumerate(steps) if name not in ("penalties", "dry")), len(steps))
        self._edits, self._steps = steps[:n_edits], steps[n_edits:]
        self._rest = None if self.mirostat else _as_plain(params, self._steps)
        self._bias = _bias(params)
        self._banned = np.array(sorted(params.banned_first), np.int64)

    def choose(self, row: Row, position: int) -> int:
        """Draw the token for `position`, commit it and return it.

        A token is first drawn without the constraint. If the constraint forbids it, the row is masked and a
        token is drawn again with the same noise. So the mask, which costs a walk through the grammar for the
        whole vocabulary, is rarely needed. Without filters, the result equals that of masking first: the
        highest score among allowed tokens does not depend on other tokens.

        Args:
            row: Logits, (vocab size,), not written to.
            position: Index of the token in the sequence. The noise depends on seed and position.
        """
        if self._direct:
            token = draw(row, self._params, position)
            if not isfinite(row[token]):
                raise ValueError(NO_NUMBERS)
            return token
        picked = self._pick_token(row, position, None)
        if self._constraint is not None and not self._constraint.allows(picked.token):
            picked = self._pick_token(row, position, self._constraint.mask())
        _check_finite(picked.logit)
        if self.mirostat is not None:
            self.mirostat.learn(picked.surprise)
        self.accept(picked.token)
        return picked.token

    def accept(self, token: int) -> None:
        """Commit a token that choose() did not draw: penalties, DRY and the constraint read it.

        Mirostat does not learn from it.
        """
        self._generated += 1
        if self._penalties is not None:
            self._penalties.accept(token)
        if self._dry is not None:
            self._dry.accept(token)
        if self._constraint is not None:
            self._constraint.accept(token)

    def distribution(self, row: Row, position: int) -> Distribution:
        """Return the distribution of the token at `position`, given its logits, masked by the constraint.

        The sampler stays unchanged. Not for mirostat, which learns from its own draws only.
        """
        edited, plain = row, self._params
        if not self._direct:
            edited = self._edited_row(row, None if self._constraint is None else self._constraint.mask())
            plain = self._rest
        found = (
            distribution(edited, plain)
            if plain
            else self._filtered_candidates(edited, position).distribution()
        )
        _check_finite(float(edited[found.ids[0]]))
        _check_finite(found.probabilities[0])  # if one were NaN, all would be
        return found

    def _pick_token(self, row: Row, position: int, mask: npt.NDArray[np.bool_] | None) -> _Pick:
        edited, surprise = self._edited_row(row, mask), 0.0
        if self._rest is not None:
            token = draw(edited, self._rest, position)
        else:
            c = self._filtered_candidates(edited, position)
            if self.mirostat is not None:
                token, surprise = self.mirostat.choose(c, len(row), position)
            else:
                token = c.token(c.choose(self._params.seed, position))
        return _Pick(token, float(edited[token]), surprise)

    def _edited_row(self, row: Row, mask: npt.NDArray[np.bool_] | None) -> Row:
        """Return the row with bias, bans and penalties applied, and minus infinity outside the mask.

        If that would leave no token, apply only the mask, because the client relies on the grammar.
        """
        banned = self._generated < self._params.min_tokens and len(self._banned) > 0
        edited = row
        if mask is not None:
            edited = np.where(mask, row, np.float32(-np.inf))
        elif self._bias is not None or banned:
            edited = row.copy()
        if self._bias is not None:
            edited[self._bias[0]] += self._bias[1]
        if banned:
            edited[self._banned] = -np.inf
        if mask is not None and not np.isfinite(edited.max()):
            return np.where(mask, row, np.float32(-np.inf))
        if self._edits:
            c = Candidates(edited)
            for name in self._edits:
                self._apply_penalty(c, name)
            edited = np.asarray(c.logits, np.float32)
        return edited

    def _apply_penalty(self, c: Candidates, name: str) -> None:
        edit = self._penalties if name == "penalties" else self._dry
        if edit is not None:
            edit.apply(c)

    def _filtered_candidates(self, row: Row, position: int) -> Candidates:
        """Return the candidates after the filters and temperature, given a row from _edited_row()."""
        c = Candidates(row)
        c.drop_impossible()
        if self.mirostat is not None:
            filters.temperature(c, self._params.temperature, 0.0, 1.0)
        for name in self._steps:
            if name == "infill" and (pieces := self._params.pieces) is not None:
                may_end = pieces.eos is not None and row[pieces.eos] > -np.inf
                infill(c, pieces, pieces.eos if may_end else None)
            else:
                self._apply_filter(c, name, position)
        return c

    def _apply_filter(self, c: Candidates, name: str, position: int) -> None:
        p = self._params
        match name:
            case "top_n_sigma":
                filters.top_n_sigma(c, p.top_n_sigma)
            case "top_k":
                filters.top_k(c, p.top_k)
            case "typ_p":
                filters.typical_p(c, p.typical_p)
            case "top_p":
                filters.top_p(c, p.top_p)
            case "min_p":
                filters.min_p(c, p.min_p)
            case "xtc":
                if uniform(p.seed, position, XTC) < p.xtc_probability:
                    filters.xtc(c, p.xtc_threshold)
            case "temperature":
                filters.temperature(c, p.temperature, p.dynatemp_range, p.dynatemp_exponent)
            case _:
                self._apply_penalty(c, name)


def _check_finite(value: float) -> None:
    """Raise ValueError if a logit or probability is not a finite number."""
    if not isfinite(value):
        raise ValueError(NO_NUMBERS)


def _as_plain(params: SamplingParams, steps: Sequence[str]) -> SamplingParams | None:
    """Return parameters with which draw() alone does all of these steps, None if draw() cannot."""
    in_order = tuple(name for name in MIRRORED if name in steps)
    if tuple(steps) != in_order or ("temperature" in steps and params.dynatemp_range > 0.0):
        return None
    return SamplingParams(
        temperature=params.temperature if "temperature" in steps else 1.0,
        top_k=params.top_k if "top_k" in steps else 0,
        top_p=params.top_p if "top_p" in steps else 1.0,
        min_p=params.min_p if "min_p" in steps else 0.0,
        seed=params.seed,
    )


def _bias(params: SamplingParams) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]] | None:
    """Return unique token ids and the values to add to their logits, None if there is no bias."""
    total: dict[int, float] = {}
    for token, value in params.logit_bias:
        total[token] = total.get(token, 0.0) + value
    return (np.array(list(total), np.int64), np.array(list(total.values()), np.float32)) if total else None
