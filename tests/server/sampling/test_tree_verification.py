"""Sample and look up, over a tree: the target's joint distribution, and the tokens that no tree gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from server.engine.proposer import NOTHING, ROOT, Proposal
from server.engine.verify import Verdict, verify
from server.sampling.params import SamplingParams
from server.sampling.sampler import Sampler
from tests.server.sampling.chi_square import UNLIKELY, deviation

N_VOCAB, N = 6, 6_000
PROMPT = (1, 4, 4)
ROWS = (np.random.default_rng(2).standard_normal((N_VOCAB + 1, N_VOCAB)) * 1.3).astype(np.float32)
"""The target: the logits after each token; the last row stands after the prompt."""

LIKELY = np.argsort(-ROWS, axis=1)[:, :2].tolist()


def likely_tree() -> Proposal:
    """Return the two likeliest tokens, two after each, and one after one of those."""
    a, b = LIKELY[N_VOCAB]
    second = (*LIKELY[a], *LIKELY[b])
    return Proposal((a, b, *second, LIKELY[second[0]][0]), (ROOT, ROOT, 0, 0, 1, 1, 2), ("d",) * 7)


TREE = likely_tree()
OFF = SamplingParams(1.0, 0, 1.0, 0.0)
SETTINGS = [
    OFF,
    SamplingParams(1.2, 4, 0.9, 0.05),
    replace(OFF, repeat_penalty=1.5, frequency_penalty=0.3),
    replace(OFF, xtc_probability=1.0, xtc_threshold=0.2),
]


def step(sampler: Sampler, tokens: Sequence[int], proposal: Proposal) -> Verdict:
    """Return the verdict after the prompt and these tokens, up to two tokens in all."""

    def choose(node: int, i: int) -> int:
        after = proposal.tokens[node] if node != ROOT else tokens[-1] if tokens else N_VOCAB
        return sampler.choose(ROWS[after], len(PROMPT) + len(tokens) + i)

    return verify(proposal, choose, frozenset(), 2 - len(tokens))


def text(params: SamplingParams, tree: Proposal) -> tuple[tuple[int, ...], int]:
    """Return the first two tokens, the first drawn with this proposal, and its number of right nodes."""
    sampler = Sampler(params, PROMPT, None)
    first = step(sampler, (), tree)
    if len(first.tokens) == 2:
        return first.tokens, len(first.nodes)
    return first.tokens + step(sampler, first.tokens, NOTHING).tokens, len(first.nodes)


def joint(params: SamplingParams) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    p = np.zeros((N_VOCAB, N_VOCAB))
    first = Sampler(params, PROMPT, None).distribution(ROWS[N_VOCAB], len(PROMPT))
    for token, probability in zip(first.ids.tolist(), first.probabilities.tolist(), strict=True):
        second = Sampler(params, (*PROMPT, token), None).distribution(ROWS[token], len(PROMPT) + 1)
        p[token, second.ids] = probability * second.probabilities
    return p


@pytest.mark.parametrize("params", SETTINGS, ids=["plain", "filtered", "penalties", "xtc"])
def test_trees_keep_the_joint_distribution(params: SamplingParams):
    counts = np.zeros((N_VOCAB, N_VOCAB))
    n_right = 0
    for seed in range(N):
        tokens, right = text(params.reseeded(seed), TREE)
        counts[tokens] += 1
        n_right += right
        if seed < 1_000:
            assert text(params.reseeded(seed), NOTHING) == (tokens, 0)
    assert deviation(counts, joint(params)) < UNLIKELY
    assert n_right > N // 3, "the tree was of use"
