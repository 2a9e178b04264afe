"""Engines and browsers that draft badly; `make chaos` plays many more seeds."""

from __future__ import annotations

import pytest

from tests.chaos.engines import MOST_COST, Played, plain, play
from tests.chaos.moody import MOODS, Mood, Moods

KINDS = pytest.mark.parametrize("kind", ["engine", "browser"])


@pytest.fixture(scope="module")
def alone() -> Played:
    return plain()


def cost(played: Played, alone: Played) -> float:
    assert played.tokens == alone.tokens, "guesses changed the text"
    return played.seconds / alone.seconds - 1


def test_seeds_have_every_mood():
    assert {mood for seed in range(50) for _, mood in Moods.of(seed).changes} == {"well", *MOODS}


@KINDS
@pytest.mark.parametrize("seed", [7, 11])
def test_moody_drafters_cost_little(kind: str, seed: int, alone: Played):
    assert cost(play(kind, alone.tokens, seed), alone) < MOST_COST


@KINDS
@pytest.mark.parametrize("mood", MOODS)
def test_no_mood_costs_much_for_good(kind: str, mood: Mood, alone: Played):
    assert cost(play(kind, alone.tokens, 1, Moods([(0, mood)])), alone) < MOST_COST


@KINDS
def test_well_ones_are_worth_it(kind: str, alone: Played):
    played = play(kind, alone.tokens, 1, Moods([(0, "well")]))
    assert cost(played, alone) < -0.1
    assert played.n_accepted > 100


def test_gate_bounds_what_liars_cost(alone: Played):
    lying = Moods([(0, "lying")])
    gated, ungated = (
        cost(play("engine", alone.tokens, 1, lying, gate=gate), alone) for gate in (True, False)
    )
    assert 1.5 * gated < ungated
