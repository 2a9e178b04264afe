"""A short run of every target. The long one is `make fuzz`."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.seeds import SEEDS
from tests.fuzz.targets import TARGETS

SLOW = {"templates", "grammars", "schemas", "files"}
"""Milliseconds each."""


def mutated(seeds: list[bytes]) -> st.SearchStrategy[bytes]:
    """Draw any bytes, or a seed with a part replaced."""

    def splice(seed: bytes, at: int, n: int, new: bytes) -> bytes:
        at %= len(seed) + 1
        return seed[:at] + new + seed[at + n :]

    return st.one_of(
        st.binary(max_size=200),
        st.builds(
            splice, st.sampled_from(seeds), st.integers(0, 400), st.integers(0, 9), st.binary(max_size=9)
        ),
    )


@pytest.mark.parametrize("name", TARGETS)
def test_no_bytes_make_it_fail(name: str):
    for seed in SEEDS[name]:
        TARGETS[name](seed)

    @settings(
        max_examples=20 if name in SLOW else 60, suppress_health_check=[HealthCheck.too_slow], database=None
    )
    @given(mutated(SEEDS[name]))
    def run(data: bytes) -> None:
        TARGETS[name](data)

    run()
