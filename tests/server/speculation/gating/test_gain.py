"""What guesses of a draft model in the lead bring a reply that is alone."""

from __future__ import annotations

from server.speculation.gating.credit import LOSS
from server.speculation.gating.gain import HOPED, ReplyGain


def replies(gain: ReplyGain, n: int, net: float) -> None:
    for _ in range(n):
        gain.observe(max(0.0, net), max(0.0, -net))
        gain.ended(10)


def test_replies_are_tried_at_once_until_they_lose_on_average():
    gain = ReplyGain()
    replies(gain, 10, -HOPED)
    assert gain.wait == 0
    replies(gain, 1, -HOPED)
    assert gain.wait > 0


def test_tries_wait_until_what_they_lose_is_a_small_share():
    gain = ReplyGain()
    replies(gain, 500, -4.0)
    assert abs(gain.wait * LOSS - 4.0) < 0.02
    for _ in range(39):
        gain.ended(10)  # nothing was guessed for these
    assert 0 < gain.wait <= 10
    gain.ended(10)
    assert gain.wait == 0


def test_replies_that_gain_end_the_wait():
    gain = ReplyGain()
    replies(gain, 500, -1.0)
    replies(gain, 2, 20.0)
    assert gain.wait == 0
