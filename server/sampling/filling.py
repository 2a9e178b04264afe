"""llama.cpp's sampler for infill: choose an end of text, or the likely tokens only."""

from __future__ import annotations

import numpy as np

from server.sampling.candidates import Candidates
from server.sampling.draw import Floats, Ids, softmax
from server.sampling.params import Pieces

LIKELY = 0.2
"""Minimum probability of a likely token, as in llama.cpp. A text that has no likely token ends."""
MAX_COMPARED = 256
"""Number of the likeliest candidates that are compared with each other; llama.cpp compares all. At most five
candidates can reach LIKELY, so a limit of half or twice as many changes little except the time."""


def infill(c: Candidates, pieces: Pieces, end: int | None) -> None:
    """Keep only end tokens (`pieces.eog`) if an end is likely, else end tokens and likely tokens.

    Before likely tokens are chosen, tokens are merged if the text of one begins with the text of the other:
    the likelier one gets the probability of both. If no token is likely then, only `end` is kept, or the
    likeliest token if `end` is None.
    """
    order = np.argsort(-c.logits, kind="stable")
    probabilities = softmax(c.logits.astype(np.float64))[order]
    ids = order if c.ids is None else c.ids[order]
    ends = np.isin(ids, list(pieces.eog))
    ending = float(probabilities[ends].sum())
    if 3 * ending * len(ids) > 1 - ending:
        c.keep(np.sort(order[ends]))
        return
    _merge_prefixes(probabilities, [pieces.piece(int(token)) for token in ids[:MAX_COMPARED]])
    likely = (probabilities >= LIKELY) & ~ends
    if not likely.any():
        _leave_only(c, end)
        return
    kept = likely | ends
    shares = probabilities / probabilities[kept].sum()
    c.keep(np.sort(order[kept & (ends | (shares >= 1 / (likely.sum() + 1)))]))


def _merge_prefixes(probabilities: Floats, texts: list[bytes]) -> None:
    """Change `probabilities`: if the text of one token begins with the text of another token, merge them.

    The likelier token gets the probability of both, the other token gets 0.
    """
    gone: set[int] = set()
    for i, text in enumerate(texts):
        for j, other in enumerate(texts):
            if i in gone:
                break
            if text and i != j and j not in gone and other.startswith(text):
                to, of = (j, i) if probabilities[j] > probabilities[i] else (i, j)
                probabilities[to] += probabilities[of]
                probabilities[of] = 0.0
                gone.add(of)


def _leave_only(c: Candidates, token: int | None) -> None:
    if token is None:
        c.keep(np.array([c.logits.argmax()], np.int64))
    else:
        ids: Ids = np.array([token], np.int64)
        c.ids, c.logits = ids, np.zeros(1)
