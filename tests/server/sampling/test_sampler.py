"""The sampler of one generation: state, order, grammar, and that its draws have the right distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.sampling.draw import Row, draw
from server.sampling.params import SamplingParams
from server.sampling.sampler import Sampler
from tests.server.sampling.chi_square import UNLIKELY, deviation
from tests.server.sampling.llama_chain import survivors

OFF = SamplingParams(1.0, 0, 1.0, 0.0)
GREEDY = SamplingParams(0.0, 0, 1.0, 0.0)


def row_of(*logits: float) -> Row:
    return np.array(logits, np.float32)


def logs(*probabilities: float) -> Row:
    return np.log(np.array(probabilities)).astype(np.float32)


def noise(seed: int, n: int, scale: float = 1.5) -> Row:
    return (np.random.default_rng(seed).standard_normal(n) * scale).astype(np.float32)


class Alternate:
    """A grammar of alternating even and odd ids, even first, that counts requested masks."""

    def __init__(self, n_vocab: int):
        self._ids = np.arange(n_vocab)
        self.taken: list[int] = []
        self.masks = 0

    def allows(self, token: int) -> bool:
        return token % 2 == len(self.taken) % 2

    def mask(self) -> npt.NDArray[np.bool_]:
        self.masks += 1
        return self._ids % 2 == len(self.taken) % 2

    def accept(self, token: int) -> None:
        assert self.allows(token)
        self.taken.append(token)

    def forced(self) -> tuple[int, ...]:
        return ()

    def n_allowed(self, tokens: Sequence[int]) -> int:
        ok = [(len(self.taken) + i) % 2 == token % 2 for i, token in enumerate(tokens)]
        return ok.index(False) if False in ok else len(ok)


SETTINGS = [
    OFF,
    SamplingParams(),
    replace(OFF, top_k=4, temperature=1.7),
    replace(OFF, typical_p=0.6),
    replace(OFF, top_n_sigma=1.2, temperature=0.7),
    replace(OFF, xtc_probability=1.0, xtc_threshold=0.1),
    replace(OFF, dynatemp_range=0.7, temperature=0.9),
    replace(OFF, repeat_penalty=1.4, presence_penalty=0.3, frequency_penalty=0.2),
    replace(SamplingParams(), repeat_penalty=1.2, dry_multiplier=0.8, dry_allowed_length=1),
    replace(OFF, logit_bias=((1, 2.5), (0, -math.inf))),
    replace(
        OFF, samplers=("temperature", "top_p", "penalties"), top_p=0.8, temperature=1.4, repeat_penalty=1.5
    ),
    replace(OFF, mirostat=2, mirostat_tau=1.5),
    replace(OFF, mirostat=1, mirostat_tau=1.5),
]
N = 4_000


@pytest.mark.parametrize("params", SETTINGS, ids=repr)
def test_draws_have_the_distribution_of_llamacpps_chain(params: SamplingParams):
    row, history = noise(5, 40), [3, 7, 7, 12, 3, 7]
    expected = survivors(row, params, history)
    drawn = [Sampler(params.reseeded(seed), history, None).choose(row, 6) for seed in range(N)]
    probabilities = np.zeros(40)
    probabilities[expected.ids] = expected.probabilities
    assert deviation(np.bincount(drawn, minlength=40), probabilities) < UNLIKELY


def test_chi_square_notices_wrong_temperature():
    row = noise(5, 40)
    drawn = [draw(row, replace(OFF, temperature=1.2, seed=seed), 6) for seed in range(N)]
    probabilities = survivors(row, OFF, []).probabilities
    assert deviation(np.bincount(drawn, minlength=40), probabilities) > 2 * UNLIKELY


def test_xtc_throws_its_coin_at_every_position():
    params = replace(OFF, xtc_probability=0.3, xtc_threshold=0.15, seed=4)
    row = logs(0.4, 0.3, 0.2, 0.1)
    sampler = Sampler(params, [], None)
    drawn = [sampler.choose(row, position) for position in range(N)]
    off, on = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.0, 0.0, 2 / 3, 1 / 3])
    assert deviation(np.bincount(drawn, minlength=4), 0.7 * off + 0.3 * on) < UNLIKELY


@pytest.mark.parametrize("params", [OFF, replace(OFF, repeat_penalty=1.3)], ids=["plain", "penalties"])
def test_grammar_gives_the_masked_softmax(params: SamplingParams):
    row = noise(8, 12)
    allowed = np.arange(12) % 2 == 0
    masked = np.where(allowed, row, np.float32(-np.inf))
    drawn: list[int] = []
    masks = 0
    for seed in range(N):
        grammar = Alternate(12)
        token = Sampler(params.reseeded(seed), [2, 3], grammar).choose(row, 2)
        assert token == Sampler(params.reseeded(seed), [2, 3], None).choose(masked, 2)
        assert grammar.taken == [token]
        drawn.append(token)
        masks += grammar.masks
    expected = Sampler(params, [2, 3], Alternate(12)).distribution(row, 2)
    probabilities = np.zeros(12)
    probabilities[expected.ids] = expected.probabilities
    assert deviation(np.bincount(drawn, minlength=12), probabilities) < UNLIKELY
    assert 0 < masks < N, "only where the first draw is not allowed"


def test_grammar_beats_bans_at_conflict():
    params = replace(OFF, min_tokens=5, banned_first=frozenset({0}), logit_bias=((2, -math.inf),))
    grammar = Alternate(3)
    assert Sampler(params, [], grammar).choose(row_of(0.0, 9.0, 1.0), 0) in (0, 2)


def test_plain_parameters_are_just_a_draw():
    row = noise(1, 300)
    for params in (OFF, GREEDY, SamplingParams(seed=9)):
        sampler = Sampler(params, [1, 2, 3], None)
        assert [sampler.choose(row, i) for i in range(30)] == [draw(row, params, i) for i in range(30)]


@pytest.mark.parametrize(
    ("params", "plain"),
    [
        (SamplingParams(), True),
        (SamplingParams(samplers=("top_k", "top_p", "min_p", "temperature")), True),
        (SamplingParams(repeat_penalty=1.1, repeat_last_n=0), True),
        (SamplingParams(xtc_probability=0.5, xtc_threshold=0.6), True),
        (SamplingParams(min_tokens=5), True),
        (SamplingParams(repeat_penalty=1.1, samplers=("top_k", "top_p", "min_p", "temperature")), True),
        (SamplingParams(samplers=("temperature",)), False),
        (SamplingParams(samplers=("temperature", "top_k", "top_p", "min_p")), False),
        (SamplingParams(repeat_penalty=1.1), False),
        (SamplingParams(frequency_penalty=0.1), False),
        (SamplingParams(dry_multiplier=0.8), False),
        (SamplingParams(typical_p=0.9), False),
        (SamplingParams(top_n_sigma=1.0), False),
        (SamplingParams(xtc_probability=0.5), False),
        (SamplingParams(dynatemp_range=0.5), False),
        (SamplingParams(temperature=1.0, dynatemp_range=0.5), False),
        (SamplingParams(mirostat=2), False),
        (SamplingParams(logit_bias=((1, 1.0),)), False),
        (SamplingParams(min_tokens=5, banned_first=frozenset({2})), False),
    ],
    ids=repr,
)
def test_plain_follows_first_five_fields(params: SamplingParams, plain: bool):
    assert params.is_plain == plain
    mirrored = params.mirrored()
    row, history = noise(3, 50), [4, 4, 9]
    same = [
        Sampler(params.reseeded(s), history, None).choose(row, 3) == draw(row, mirrored.reseeded(s), 3)
        for s in range(40)
    ]
    assert all(same) or not plain


def test_an_unknown_sampler_is_an_error():
    with pytest.raises(ValueError, match="tfs_z"):
        Sampler(replace(OFF, samplers=("tfs_z",)), [], None)


def test_zero_temperature_is_penalised_argmax():
    row = row_of(5.0, 4.0, 3.0, 2.0)
    assert Sampler(GREEDY, [], None).choose(row, 0) == 0
    assert Sampler(replace(GREEDY, logit_bias=((1, 1.5),)), [], None).choose(row, 0) == 1
    penalised = replace(GREEDY, repeat_penalty=2.0)
    assert Sampler(penalised, [0], None).choose(row, 1) == 1
    assert Sampler(penalised, [0], Alternate(4)).choose(row, 1) == 2, "odd ids are not allowed first"
    assert Sampler(replace(GREEDY, presence_penalty=1.5, typical_p=0.99), [0], None).choose(row, 1) == 1


def test_penalties_count_the_committed_window():
    params = replace(GREEDY, frequency_penalty=1.0, repeat_last_n=2)
    sampler = Sampler(params, [], None)
    row = row_of(3.0, 2.5, 0.0)
    # logits of 0 and 1: 3.0 2.5 | 2.0 2.5 | 2.0 1.5 | 2.0 1.5 (the first 0 is out, the second in) | 1.0 2.5
    assert [sampler.choose(row, i) for i in range(5)] == [0, 1, 0, 0, 1]
    assert row.tolist() == [3.0, 2.5, 0.0], "the row is not written to"


def test_the_prompt_counts_for_penalties():
    params = replace(GREEDY, presence_penalty=2.0, repeat_last_n=3)
    row = row_of(3.0, 2.5, 0.0)
    assert Sampler(params, [0, 1, 1], None).choose(row, 3) == 0, "1.0 against 0.5"
    assert Sampler(params, [0, 1, 1, 2], None).choose(row, 4) == 0, "0 has left the window"
    assert Sampler(params, [1, 0, 0, 2], None).choose(row, 4) == 1


def test_min_tokens_bans_stop_token():
    params = replace(GREEDY, min_tokens=3, banned_first=frozenset({0}))
    sampler = Sampler(params, [9, 9, 9, 9, 9], None)
    row = row_of(5.0, 1.0)
    assert [sampler.choose(row, 5 + i) for i in range(5)] == [1, 1, 1, 0, 0]


def test_top_n_sigma_by_hand():
    # mean 2.5, deviation 1.118: with n = 1 only what is at least 4 - 1.118
    params = replace(OFF, top_n_sigma=1.0)
    assert Sampler(params, [], None).distribution(row_of(1.0, 2.0, 3.0, 4.0), 0).ids.tolist() == [2, 3]


def test_typical_by_hand():
    # entropy 1.14 nat; surprises 0.69, 1.20, 1.90, 3.00: 0.3 is nearest (0.06 off), then 0.5 (0.45 off)
    row = logs(0.5, 0.3, 0.15, 0.05)
    assert Sampler(replace(OFF, typical_p=0.2), [], None).distribution(row, 0).ids.tolist() == [1]
    assert Sampler(replace(OFF, typical_p=0.5), [], None).distribution(row, 0).ids.tolist() == [0, 1]


def test_xtc_by_hand():
    params = replace(OFF, xtc_probability=1.0, xtc_threshold=0.15)
    left = Sampler(params, [], None).distribution(logs(0.2, 0.4, 0.1, 0.3), 0)
    assert left.ids.tolist() == [0, 2], "0.3 and 0.4 go, the least likely above the threshold stays"
    np.testing.assert_allclose(left.probabilities, [2 / 3, 1 / 3], rtol=1e-6)
    tie = Sampler(params, [], None).distribution(logs(0.4, 0.4, 0.2 / 3, 0.2 / 3, 0.2 / 3), 0)
    assert tie.ids.tolist() == [1, 2, 3, 4]


def test_dynamic_temperature_by_hand():
    params = replace(OFF, temperature=1.0, dynatemp_range=0.5)
    even = Sampler(params, [], None).distribution(row_of(1.0, 1.0), 0)
    assert even.probabilities.tolist() == [0.5, 0.5]
    row = logs(0.9, 0.1)
    share = -(0.9 * math.log(0.9) + 0.1 * math.log(0.1)) / math.log(2)
    warm = 9.0 ** (1.0 / (0.5 + share))
    left = Sampler(params, [], None).distribution(row, 0)
    assert left.probabilities[0] == pytest.approx(warm / (1.0 + warm), rel=1e-5)


@pytest.mark.parametrize("wanted", [1e-320, 1e-310, 1e-100, 1e-7])
@pytest.mark.parametrize("order", [("top_k", "temperature"), ("temperature", "top_k")])
def test_near_zero_dynatemp_is_greedy(order: tuple[str, ...], wanted: float):
    """The temperature is the share of the largest entropy to the power of the exponent."""
    params = replace(OFF, top_k=40, temperature=0.5, dynatemp_range=0.5, samplers=order)
    for seed in range(20):
        row = noise(seed, 64, 4.0) + np.float32(40.0)
        share = _share_of_entropy(row if order[0] == "temperature" else np.sort(row)[-40:])
        asked = replace(params, seed=seed, dynatemp_exponent=math.log(wanted) / math.log(share))
        assert Sampler(asked, [], None).choose(row, 0) == row.argmax()


def _share_of_entropy(row: Row) -> float:
    shares = np.exp(row.astype(np.float64) - row.max())
    shares /= shares.sum()
    return float(-(shares @ np.log(shares)) / math.log(len(row)))


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_brings_the_surprise_to_its_target(version: int):
    params = replace(OFF, mirostat=version, mirostat_tau=2.0, mirostat_eta=0.2, seed=5)
    sampler = Sampler(params, [], None)
    surprises: list[float] = []
    for position in range(800):
        row = noise(position, 500, 1.0)
        token = sampler.choose(row, position)
        surprises.append(-math.log2(float(np.exp(row[token]) / np.exp(row).sum())))
    unsteered = 8.2  # bits: the entropy of such rows
    assert np.mean(surprises[200:]) < unsteered - 2.0


def test_mirostat_learns_from_the_committed_token_only():
    """mu begins at 2 tau = 4 bits, which cuts off a token of 5 bits.

    A certain token has no surprise: mu rises by eta tau = 2.6 bits.
    """
    params = replace(OFF, mirostat=2, mirostat_tau=2.0, mirostat_eta=1.3, seed=0)
    row = logs(0.727, 0.2417, 1 / 32)
    first = {Sampler(params.reseeded(s), [], None).choose(row, 0) for s in range(300)}
    assert first == {0, 1}

    def second(seed: int) -> int:
        sampler = Sampler(params.reseeded(seed), [], None)
        sampler.choose(row_of(9.0, -9.0, -9.0), 0)
        return sampler.choose(row, 1)

    assert {second(s) for s in range(300)} == {0, 1, 2}


NAN, VAST = math.nan, 200_000
UNDRAWABLE = {
    "no number": np.full(40, NAN, np.float32),
    "no number, many tokens": np.full(VAST, NAN, np.float32),
    "nothing possible": np.full(40, -np.inf, np.float32),
    "nothing possible, many tokens": np.full(VAST, -np.inf, np.float32),
    "without a bound": row_of(*[1.0] * 39, math.inf),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("params", [GREEDY, *SETTINGS], ids=repr)
@pytest.mark.parametrize("row", UNDRAWABLE.values(), ids=UNDRAWABLE)
def test_non_numbers_draw_nothing(row: Row, params: SamplingParams):
    with pytest.raises((ValueError, IndexError)):
        Sampler(params, [1, 2], None).choose(row, 2)
    if not params.mirostat:
        with pytest.raises((ValueError, IndexError)):
            Sampler(params, [1, 2], None).distribution(row, 2)


ROW = noise(77, 60)


@given(
    seed=st.integers(0, 2**64 - 1),
    history=st.lists(st.integers(0, 59), max_size=30),
    chosen=st.integers(0, len(SETTINGS) - 1),
    elsewhere=st.lists(st.integers(0, 1000), max_size=3),
)
def test_equal_history_draws_equal_token(seed: int, history: list[int], chosen: int, elsewhere: list[int]):
    """Other draws before do not matter, nor whether tokens came as prompt or were committed one by one."""
    params = SETTINGS[chosen].reseeded(seed)
    token = Sampler(params, history, None).choose(ROW, len(history))
    for other in elsewhere:
        Sampler(params.reseeded(other), history, None).choose(noise(other, 60), other)
    assert Sampler(params, tuple(history), None).choose(ROW.copy(), len(history)) == token
    one_by_one = Sampler(params, [], None)
    for committed in history:
        one_by_one.accept(committed)
    assert one_by_one.choose(ROW, len(history)) == token
