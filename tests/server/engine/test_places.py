"""Requests that say where they go, and what of the cache they use."""

from __future__ import annotations

from dataclasses import replace

import pytest

from server.engine.admission import WORTH_SHARING
from server.engine.events import Committed, Progress
from server.errors import FieldError
from server.llama.backend import Batch
from server.sampling.logprobs import token_logprobs
from tests.fake_backend import FakeBackend, FakeModel
from tests.support import PROMPT, Harness, Outcome, request

OTHER = tuple(b"Something else entirely, of which nothing is cached. ")


def ended_at(outcome: Outcome) -> float:
    return max(event.at for event in outcome.events if isinstance(event, Committed))


def test_session_waits_for_its_slot():
    first, second = (replace(request(prompt), slot=0) for prompt in (PROMPT, OTHER))
    one, two, other = Harness(n_slots=2).run(first, second, request(OTHER[::-1]))
    assert [outcome.started.slot for outcome in (one, two, other)] == [0, 0, 1]
    assert other.started.at < ended_at(one) <= two.started.at


def test_a_slot_gets_what_another_has_cached():
    harness = Harness(n_slots=2)
    [before] = harness.run(request())
    there = 1 - before.started.slot
    [after] = harness.run(replace(request(), slot=there))
    assert (after.started.slot, after.started.n_cached) == (there, len(PROMPT) - 1)
    assert after.tokens == before.tokens


@pytest.mark.parametrize(("n_common", "n_cached"), [(20, 0), (100, 100)])
def test_short_prefixes_are_not_copied(n_common: int, n_cached: int):
    common, ends = (PROMPT * 5)[:n_common], (b"first of all", b"second to none")
    asks = [request((*common, *end)) for end in ends]
    apart = Harness(FakeBackend(can_share=False), n_slots=2)
    [_], [found] = apart.run(asks[0]), apart.run(asks[1])
    assert found.started.n_cached == n_cached
    assert found.tokens == Harness().run(asks[1])[0].tokens


@pytest.mark.parametrize(
    ("n_tokens", "salts", "waits"),
    [
        pytest.param(WORTH_SHARING + 1, ("", ""), False, id="too little to share"),
        pytest.param(WORTH_SHARING + 2, ("", ""), True, id="enough"),
        pytest.param(WORTH_SHARING + 2, ("one", "other"), False, id="of another salt"),
    ],
)
def test_prompt_waits_for_equal_one(n_tokens: int, salts: tuple[str, str], waits: bool):
    prompt = (PROMPT * 5)[:n_tokens]
    one, two = Harness(n_slots=2).run(*(replace(request(prompt), salt=salt) for salt in salts))
    began = next(event.at for event in one.events if isinstance(event, Committed))
    assert (two.started.at > began) == waits
    assert two.started.n_cached == (n_tokens - 1 if waits else 0)


def test_missing_slot_is_refused():
    with pytest.raises(FieldError, match="no slot 99"):
        Harness().run(replace(request(), slot=99))


@pytest.mark.parametrize("slot", [None, 0])
def test_uncached_prompt_has_same_text(slot: int | None):
    harness = Harness()
    [before] = harness.run(request())
    [after] = harness.run(replace(request(), reuse=False, slot=slot))
    assert (after.started.n_cached, after.tokens) == (0, before.tokens)


def test_prompt_logprobs_match_the_model():
    model = FakeModel(seed=3)
    asked = replace(request(), reuse=False, prompt_logprobs=True, n_logprobs=1)
    told, beside = Harness(FakeBackend(model)).run(asked, request(OTHER))
    progress = [event for event in told.events if isinstance(event, Progress)]
    found = [one for event in progress for one in event.logprobs]
    batch = Batch()
    batch.extend(0, 0, PROMPT, len(PROMPT))
    rows = FakeBackend(model).decode(batch)[:-1]
    expected = [token_logprobs(row, token, 1) for row, token in zip(rows, PROMPT[1:], strict=True)]
    assert found == expected
    assert beside.tokens == Harness(FakeBackend(model)).run(request(OTHER))[0].tokens
