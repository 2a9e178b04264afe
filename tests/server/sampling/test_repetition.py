"""What the penalties remember, against slow and plain definitions."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.sampling.candidates import Candidates
from server.sampling.dry import Dry
from server.sampling.params import SamplingParams
from server.sampling.penalties import Penalties

tokens = st.lists(st.integers(0, 5), max_size=40)
BASE = SamplingParams(dry_multiplier=1.0, dry_base=2.0, dry_allowed_length=2)


@given(prompt=tokens, committed=tokens, window=st.integers(-1, 12).filter(bool))
def test_penalties_count_the_window(prompt: list[int], committed: list[int], window: int):
    params = SamplingParams(
        repeat_penalty=2.0, presence_penalty=0.25, frequency_penalty=1.0, repeat_last_n=window
    )
    penalties = Penalties(params, prompt)
    for token in committed:
        penalties.accept(token)
    row = np.array([3.0, -1.0, 0.0, 2.0, -4.0, 1.0], np.float32)
    c = Candidates(row)
    penalties.apply(c)
    history = prompt + committed
    counts = Counter(history if window < 0 else history[-window:])
    expected = [
        (x / 2.0 if x > 0 else x * 2.0) - counts[i] - 0.25 if counts[i] else x
        for i, x in enumerate(row.tolist())
    ]
    assert c.logits.tolist() == pytest.approx(expected)


def test_penalties_over_many_different_tokens():
    penalties = Penalties(SamplingParams(frequency_penalty=1.0, repeat_last_n=-1), range(10))
    for token in range(500):
        penalties.accept(token)
    c = Candidates(np.zeros(500, np.float32))
    penalties.apply(c)
    assert c.logits.tolist() == [-2.0] * 10 + [-1.0] * 490


def penalties_of(params: SamplingParams, history: list[int]) -> dict[int, float]:
    ids, amounts = Dry(params, history).penalties()
    return dict(zip(ids.tolist(), amounts.tolist(), strict=True))


def slow(params: SamplingParams, history: list[int]) -> dict[int, float]:
    """Return the penalties by definition: at each earlier place, compare the text up to it with the end."""
    n = params.dry_penalty_last_n
    window = history if n < 0 else history[-n:]
    limit = len(window)
    for i in range(len(window) - 1, -1, -1):
        ends = [i + len(b) for b in params.dry_sequence_breakers if tuple(window[i : i + len(b)]) == b]
        if ends:
            limit = len(window) - max(ends)
            break
    longest: dict[int, int] = {}
    for place in range(1, len(window)):
        length = 0
        while length < min(place, limit) and window[place - 1 - length] == window[-1 - length]:
            length += 1
        if length >= params.dry_allowed_length:
            longest[window[place]] = max(length, longest.get(window[place], 0))
    single = {b[0] for b in params.dry_sequence_breakers if len(b) == 1}
    return {
        token: params.dry_multiplier * params.dry_base ** (length - params.dry_allowed_length)
        for token, length in longest.items()
        if token not in single and len(window) > params.dry_allowed_length
    }


def test_dry_by_hand():
    # the text ends in 1 2 3, which occurred before 4; 2 3 also before 5; 3 alone is not long enough for 6
    history = [1, 2, 3, 4, 2, 3, 5, 3, 6, 1, 2, 3]
    assert penalties_of(BASE, history) == {4: 2.0, 5: 1.0}
    assert penalties_of(replace(BASE, dry_sequence_breakers=((2,),)), history) == {}, "1 token since 2"
    assert penalties_of(replace(BASE, dry_sequence_breakers=((1,),)), history) == {4: 1.0, 5: 1.0}
    assert penalties_of(replace(BASE, dry_sequence_breakers=((6, 1),)), history) == {4: 1.0, 5: 1.0}
    assert penalties_of(replace(BASE, dry_sequence_breakers=((4,),)), history) == {5: 1.0}


@given(
    prompt=tokens,
    committed=tokens,
    window=st.sampled_from([-1, 1, 4, 9, 20]),
    allowed=st.integers(0, 4),
    breakers=st.lists(
        st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple), max_size=3, unique=True
    ),
)
def test_dry_is_its_definition(
    prompt: list[int], committed: list[int], window: int, allowed: int, breakers: list[tuple[int, ...]]
):
    params = replace(
        BASE, dry_penalty_last_n=window, dry_allowed_length=allowed, dry_sequence_breakers=tuple(breakers)
    )
    dry = Dry(params, prompt)
    for token in committed:
        dry.accept(token)
    ids, amounts = dry.penalties()
    assert dict(zip(ids.tolist(), amounts.tolist(), strict=True)) == slow(params, prompt + committed)


def test_dry_handles_repetitive_long_text():
    params = replace(BASE, dry_base=1.75, dry_penalty_last_n=600)
    dry = Dry(params, [])
    for i in range(3_000):
        dry.accept(i % 500)
    ids, amounts = dry.penalties()
    assert ids.tolist() == [0]
    assert amounts[0] == pytest.approx(1.75**98), "100 tokens are the same"
    dry = Dry(replace(params, dry_penalty_last_n=-1), [i % 500 for i in range(3_000)])
    assert dry.penalties()[1][0] == 1e30, "as good as a ban, and no overflow"
