"""What is measured, with the toy model."""

from __future__ import annotations

import pytest

from server.doctor.examination import REPLY, guess_seconds, guesses, replies, step_seconds
from server.doctor.forecast import MOST
from tests.fake_backend import FakeBackend, FakeModel

PROMPT = tuple(b"Once upon a time there was a lead. ")


def test_a_model_guesses_its_own_text_right_and_another_one_does_not():
    target = FakeBackend(FakeModel(seed=3, eog_rate=0.0))
    [said, again] = replies(target, [PROMPT, PROMPT * 3])
    assert len(said) == len(again) == REPLY
    own, read_s = guesses(FakeBackend(FakeModel(seed=3, eog_rate=0.0)), PROMPT, said)
    assert len(own) == REPLY - 1
    assert read_s > 0
    assert all(guess.right for guess in own)
    assert all(0 < guess.confidence <= 1 for guess in own)
    other, _ = guesses(FakeBackend(FakeModel(seed=4, eog_rate=0.0)), PROMPT, said)
    assert sum(guess.right for guess in other) < REPLY / 2
    assert target.length(0) == 0


def test_a_reply_ends_where_the_model_ends_it():
    target = FakeBackend(FakeModel(seed=3, eog_rate=0.2))
    [said] = replies(target, [PROMPT])
    assert len(said) < REPLY
    assert said[-1] in target.vocab.eog
    assert not set(said[:-1]) & target.vocab.eog


def test_steps_and_guesses_take_the_time_of_their_decodes():
    target = FakeBackend(FakeModel(), step_s=0.002, row_s=0.001)
    seconds = step_seconds(target)
    assert len(seconds) == MOST + 2
    assert seconds[1] >= 0.003
    assert seconds[16] >= 0.018
    assert guess_seconds(target) >= 0.003
    assert target.length(0) == 0


@pytest.mark.parametrize("can_copy", [True, False])
def test_steps_of_models_that_do_not_forget_are_measured_or_nothing(can_copy: bool):
    seconds = step_seconds(FakeBackend(FakeModel(), can_trim=False, can_copy=can_copy))
    assert any(seconds) is can_copy
