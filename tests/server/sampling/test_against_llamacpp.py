"""The same candidates with the same probabilities as llama.cpp's samplers leave, alone and in many chains."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from server.llama.library import LoadedModel
from server.llama.llamacpp import LlamaVocabulary
from server.llama.options import Weights
from server.sampling.draw import Row
from server.sampling.params import ORDER, SamplingParams
from server.sampling.sampler import Sampler
from server.settings import BUNDLED_MODEL
from tests.server.sampling.llama_chain import C, survivors

OFF = SamplingParams(1.0, 0, 1.0, 0.0, seed=3)


def row_of(seed: int, n: int, scale: float) -> Row:
    return (np.random.default_rng(seed).standard_normal(n) * scale).astype(np.float32)


def agree(row: Row, params: SamplingParams, history: list[int]) -> None:
    """Check that both leave equal candidates, but for llama.cpp's float32 sum of the entropy.

    It moves the edge of a long list of typical tokens.
    """
    ours = Sampler(params, history, None).distribution(row, len(history))
    theirs = survivors(row, params, history)
    if params.typical_p < 1.0 and len(row) > 1_000:
        assert len(set(ours.ids.tolist()) ^ set(theirs.ids.tolist())) <= 3
        return
    assert ours.ids.tolist() == theirs.ids.tolist()
    np.testing.assert_allclose(ours.probabilities, theirs.probabilities, rtol=2e-4, atol=1e-7)


ONE_SAMPLER = [
    SamplingParams(1.0, 0, 1.0, 0.0),
    SamplingParams(0.4, 0, 1.0, 0.0),
    SamplingParams(0.0, 0, 1.0, 0.0),
    SamplingParams(1.0, 7, 1.0, 0.0),
    SamplingParams(1.0, 0, 0.6, 0.0),
    SamplingParams(1.0, 0, 1.0, 0.1),
    replace(OFF, typical_p=0.3),
    replace(OFF, typical_p=0.9),
    replace(OFF, top_n_sigma=1.5),
    replace(OFF, xtc_probability=1.0, xtc_threshold=0.02),
    replace(OFF, xtc_probability=1.0, xtc_threshold=0.6),
    replace(OFF, dynatemp_range=0.8, dynatemp_exponent=1.3),
    replace(OFF, dynatemp_range=1.5),
    replace(OFF, repeat_penalty=1.3, repeat_last_n=5),
    replace(OFF, repeat_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.4, repeat_last_n=-1),
    replace(OFF, dry_multiplier=0.8, dry_allowed_length=1),
    replace(OFF, dry_multiplier=0.8, dry_base=1.1, dry_allowed_length=2, dry_penalty_last_n=12),
    replace(OFF, dry_multiplier=0.5, dry_allowed_length=0),
    replace(OFF, logit_bias=((3, 2.0), (5, -float("inf")), (3, 0.5))),
]


@pytest.mark.parametrize("params", ONE_SAMPLER, ids=repr)
@pytest.mark.parametrize(("n_vocab", "scale"), [(8, 1.0), (60, 2.0), (3000, 1.5)])
def test_every_sampler_alone(params: SamplingParams, n_vocab: int, scale: float):
    rng = np.random.default_rng(n_vocab)
    for case in range(20):
        history = rng.integers(0, min(n_vocab, 3), 40).tolist()
        agree(row_of(case, n_vocab, scale), params, history)


def random_params(rng: np.random.Generator) -> SamplingParams:
    def some(value: float, neutral: float) -> float:
        return value if rng.random() < 0.5 else neutral

    return SamplingParams(
        temperature=float(rng.uniform(0.3, 1.8)),
        top_k=int(some(int(rng.integers(1, 50)), 0)),
        top_p=some(float(rng.uniform(0.3, 0.99)), 1.0),
        min_p=some(float(rng.uniform(0.01, 0.3)), 0.0),
        typical_p=some(float(rng.uniform(0.3, 0.99)), 1.0),
        xtc_probability=some(1.0, 0.0),
        xtc_threshold=float(rng.uniform(0.02, 0.5)),
        dynatemp_range=some(float(rng.uniform(0.1, 1.0)), 0.0),
        repeat_penalty=some(float(rng.uniform(0.8, 1.5)), 1.0),
        presence_penalty=some(float(rng.uniform(-0.5, 1.0)), 0.0),
        dry_multiplier=some(float(rng.uniform(0.1, 2.0)), 0.0),
        repeat_last_n=int(rng.integers(-1, 30)),
        samplers=tuple(rng.permutation([name for name in ORDER if name != "top_n_sigma"]).tolist()),
    )


@pytest.mark.parametrize("case", range(150))
def test_chains_in_any_order(case: int):
    rng = np.random.default_rng(case)
    n_vocab = int(rng.integers(2, 400))
    history = rng.integers(0, min(n_vocab, 6), int(rng.integers(0, 50))).tolist()
    agree(row_of(case, n_vocab, float(rng.uniform(0.5, 3.0))), random_params(rng), history)


def test_top_n_sigma_follows_default_order():
    """typical_p is left out: llama.cpp's gives NaN where top_n_sigma has left tokens at minus infinity."""
    params = SamplingParams(top_n_sigma=1.0, xtc_probability=1.0, xtc_threshold=0.1)
    for case in range(20):
        agree(row_of(case, 500, 2.0), params, [])


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("tau", [0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("scale", [0.5, 1.5, 4.0])
def test_mirostat_lets_through_what_llamacpp_does(version: int, tau: float, scale: float):
    params = SamplingParams(0.9, mirostat=version, mirostat_tau=tau, seed=1)
    for case in range(10):
        row = row_of(case, 800, scale)
        allowed = set(survivors(row, params, []).ids.tolist())
        drawn = {Sampler(params.reseeded(seed), [], None).choose(row, 0) for seed in range(60)}
        assert drawn <= allowed
        assert len(drawn) > 1 or len(allowed) < 5


def test_infill_ends_texts_and_merges_beginnings():
    """Over a real vocabulary, since its pieces count.

    Rows have one likely token, two of which one begins the other, a likely end, or none of these.
    """
    with closing(LoadedModel(BUNDLED_MODEL, Weights(), vocab_only=True)) as model:
        vocabulary, theirs = LlamaVocabulary(model.handle), C.llama_model_get_vocab(model.handle)
        [begun], [longer] = (vocabulary.tokenize(text, special=False) for text in ("re", "ret"))
        [other] = vocabulary.tokenize("x", special=False)
        likely = [{other: 14}, {begun: 13, longer: 13.2, other: 13}, {begun: 9, 2: 9}, {}, {begun: 9, 2: 3}]
        kinds: set[int] = set()
        for peaks, samplers in product(likely, [("top_k", "top_p", "infill"), ("infill",)]):
            row = row_of(len(peaks), vocabulary.size, 1.0)
            for token, logit in peaks.items():
                row[token] = logit
            params = replace(OFF, top_k=40, top_p=0.99, samplers=samplers, pieces=vocabulary)
            ours = Sampler(params, [], None).distribution(row, 0)
            found = survivors(row, params, [], theirs)
            assert ours.ids.tolist() == found.ids.tolist(), (peaks, samplers)
            np.testing.assert_allclose(ours.probabilities, found.probabilities, rtol=2e-4)
            kinds.add(int(ours.ids[0]) if len(ours.ids) == 1 else -len(ours.ids))
        assert {other, 2} < kinds


def test_infill_never_ends_forbidden_texts():
    with closing(LoadedModel(BUNDLED_MODEL, Weights(), vocab_only=True)) as model:
        vocabulary = LlamaVocabulary(model.handle)
        row = row_of(1, vocabulary.size, 1.0)
        params = replace(OFF, samplers=("infill",), pieces=vocabulary, min_tokens=1)
        banned = replace(params, banned_first=vocabulary.eog)
        assert Sampler(params, [], None).choose(row, 0) == vocabulary.eos
        assert Sampler(banned, [], None).choose(row, 0) == int(row.argmax()) != vocabulary.eos
