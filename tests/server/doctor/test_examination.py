"""What is measured, with the toy model."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from server.doctor import examination
from server.doctor.examination import (
    MAX_JUDGED_TOKENS,
    MAX_MEASUREMENTS,
    DisturbedError,
    guess_seconds,
    guesses,
    replies,
    step_seconds,
)
from server.doctor.forecast import MAX_GUESSES
from tests.fake_backend import FakeBackend, FakeModel

pytestmark = pytest.mark.usefixtures("still_clock")

PROMPT = tuple(b"Once upon a time there was a lead. ")


def test_own_text_is_guessed_right():
    target = FakeBackend(FakeModel(seed=3, eog_rate=0.0))
    [said, again] = replies(target, [PROMPT, PROMPT * 3])
    assert len(said) == len(again) == MAX_JUDGED_TOKENS
    own, read_s = guesses(FakeBackend(FakeModel(seed=3, eog_rate=0.0), step_s=0.001), PROMPT, said)
    assert len(own) == MAX_JUDGED_TOKENS - 1
    assert read_s == pytest.approx(0.001)
    assert all(guess.right for guess in own)
    assert all(0 < guess.confidence <= 1 for guess in own)
    other, _ = guesses(FakeBackend(FakeModel(seed=4, eog_rate=0.0)), PROMPT, said)
    assert sum(guess.right for guess in other) < MAX_JUDGED_TOKENS / 2
    assert target.length(0) == 0


def test_doctors_reply_ends_naturally():
    target = FakeBackend(FakeModel(seed=3, eog_rate=0.2))
    [said] = replies(target, [PROMPT])
    assert len(said) < MAX_JUDGED_TOKENS
    assert said[-1] in target.vocab.eog
    assert not set(said[:-1]) & target.vocab.eog


def test_times_are_those_of_decodes():
    target = FakeBackend(FakeModel(), step_s=0.002, row_s=0.001)
    seconds = step_seconds(target)
    assert seconds == pytest.approx([0.0, *(0.002 + 0.001 * rows for rows in range(1, MAX_GUESSES + 2))])
    assert guess_seconds(target) == pytest.approx(0.003)
    assert target.length(0) == 0


ONE_TO_FOUR = {rows: 0.010 + 0.001 * rows for rows in range(1, 5)}


def times(factor: float) -> dict[int, float]:
    return {rows: factor * seconds for rows, seconds in ONE_TO_FOUR.items()}


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "_on_cores", lambda: (0.0, 0.0))


def measuring(monkeypatch: pytest.MonkeyPatch, *found: dict[int, float]) -> Iterator[dict[int, float]]:
    left = iter(found)

    def measure(_backend: object, _max_rows: int) -> dict[int, float]:
        return next(left)

    monkeypatch.setattr(examination, "measure", measure)
    return left


def test_steps_are_measured_until_two_measurements_agree(monkeypatch: pytest.MonkeyPatch):
    left = measuring(monkeypatch, times(5.0), times(1.0), times(40.0), times(1.1), times(1.0))
    assert step_seconds(FakeBackend())[1:5] == pytest.approx([*ONE_TO_FOUR.values()])
    assert len(list(left)) == 1, "the fourth confirmed the second"


def test_quiet_steps_are_measured_twice(monkeypatch: pytest.MonkeyPatch):
    left = measuring(monkeypatch, *[times(1.0)] * 4)
    step_seconds(FakeBackend())
    assert len(list(left)) == 2


def test_steps_that_wait_for_cores_are_disturbed(monkeypatch: pytest.MonkeyPatch):
    passed = count()
    monkeypatch.setattr(examination, "_on_cores", lambda: (float(next(passed)), 2.0 * next(passed)))
    measuring(monkeypatch, *[times(1.0)] * MAX_MEASUREMENTS)
    with pytest.raises(DisturbedError):
        step_seconds(FakeBackend())
    measuring(monkeypatch, *[times(1.0)] * 2)
    assert any(step_seconds(FakeBackend(), alone=False)), "a drafter is meant to take cores"


def test_steps_that_never_agree_are_disturbed(monkeypatch: pytest.MonkeyPatch):
    measuring(monkeypatch, *(times(2.0**i) for i in range(MAX_MEASUREMENTS)))
    with pytest.raises(DisturbedError):
        step_seconds(FakeBackend())


def test_slow_steps_count_as_disturbed(monkeypatch: pytest.MonkeyPatch):
    measuring(monkeypatch, *[ONE_TO_FOUR | {4: 240 * ONE_TO_FOUR[1]}] * MAX_MEASUREMENTS)
    with pytest.raises(DisturbedError):
        step_seconds(FakeBackend())


@pytest.mark.parametrize("can_copy", [True, False])
def test_unforgetting_model_is_measured_safely(can_copy: bool):
    seconds = step_seconds(FakeBackend(FakeModel(), can_trim=False, can_copy=can_copy, step_s=0.001))
    assert any(seconds) is can_copy
