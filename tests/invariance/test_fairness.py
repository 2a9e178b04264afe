"""Four conversations and one drafter: each gets a token in every step; keys have turns at slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count, pairwise

import pytest

from server.engine.request import GenerationRequest
from server.engine.scheduler import Limits
from server.speculation.policy import Policy
from tests.checks import check_engine
from tests.fake_backend import FakeBackend
from tests.invariance.conversation import Ask
from tests.invariance.scene import ALL, Scene, good
from tests.support import PROMPT, Harness, request

N_TOKENS = 90
TIGHT = Limits(n_batch=12, n_chunk=4)  # rows for four sessions and two guesses each
LONG = tuple(PROMPT * 6)


def asks() -> list[Ask]:
    """Return four requests for N_TOKENS tokens.

    The third's prompt takes many steps while the others decode.
    """
    prompts = [(*PROMPT, 97), (*PROMPT[3:], 98), LONG, (*PROMPT[5:], 100)]
    return [
        Ask(request(prompt, temperature=1.0, seed=60 + i, max_tokens=N_TOKENS, stop_tokens=frozenset()))
        for i, prompt in enumerate(prompts)
    ]


def progress(harness: Harness, requests: Sequence[Ask], scene: Scene | None = None) -> list[list[int]]:
    """Return the committed tokens after each step, one list per session."""
    ids = harness.submit(*(ask.request for ask in requests))
    counts: list[list[int]] = [[] for _ in ids]
    for step in count():
        if scene is not None:
            scene.deliver(step)
        if not harness.engine.step():
            break
        for id, of_one in zip(ids, counts, strict=True):
            of_one.append(len(harness.outcomes[id].tokens))
    check_engine(harness.engine)
    return counts


def longest_pause(counts: Sequence[int]) -> int:
    """Return the longest run of steps without a new token, between the first token and the last."""
    pause = longest = 0
    for before, now in pairwise(counts):
        pause = pause + 1 if 0 < before == now < N_TOKENS else 0
        longest = max(longest, pause)
    return longest


@pytest.mark.parametrize("limits", [Limits(n_batch=64, n_chunk=16), TIGHT], ids=["roomy", "tight"])
@pytest.mark.parametrize("policy", [ALL, Policy()], ids=["all", "default"])
def test_every_step_serves_every_session(limits: Limits, policy: Policy):
    plain = progress(Harness(limits=limits), asks())
    scene = Scene("tree", policy, limits=limits)
    good(scene)
    counts = progress(scene.harness, asks(), scene)
    assert [longest_pause(one) for one in counts] == [0] * 4
    assert [one[-1] for one in counts] == [N_TOKENS] * 4
    accepted = [outcome.finished.stats.n_accepted for outcome in scene.harness.outcomes.values()]
    assert sum(accepted) > 0
    assert policy is not ALL or min(accepted) > 0  # the gate may find others' guesses better
    for with_drafts, without in zip(counts, plain, strict=True):
        assert with_drafts.index(N_TOKENS) <= without.index(N_TOKENS)


def test_the_measure_of_pauses():
    assert longest_pause([0, 0, 1, 1, 1, 2, 3, 3, 4]) == 2
    assert longest_pause([0, 0, 0, 1, N_TOKENS, N_TOKENS, N_TOKENS]) == 0


def asked_by(tenant: str, i: int = 0) -> GenerationRequest:
    prompt = (i, *tenant.encode(), *PROMPT)  # none begins like another, which would wait for it
    return replace(request(prompt, max_tokens=4, stop_tokens=frozenset()), tenant=tenant)


def admitted(harness: Harness) -> list[int]:
    """Return the ids in the order of admission, once all have ended."""
    while harness.engine.step():
        pass
    check_engine(harness.engine)
    started = {id: outcome.started.at for id, outcome in harness.outcomes.items()}
    return sorted(started, key=lambda id: (started[id], id))


@pytest.mark.parametrize("n_slots", [1, 4])
def test_next_slot_goes_to_idle_key(n_slots: int):
    clock = count()
    harness = Harness(FakeBackend(n_seqs=n_slots), n_slots=n_slots, clock=lambda: float(next(clock)))
    flood = harness.submit(*(asked_by("anna", i) for i in range(60 + n_slots)))
    harness.engine.step()
    late = harness.submit(*(asked_by("bert", i) for i in range(3)))
    order = admitted(harness)
    assert order[:n_slots] == flood[:n_slots]
    assert order[n_slots] == late[0]
    assert order.index(late[2]) <= 3 * n_slots + 2, "it has its share of those that follow, too"
    assert [id for id in order if id in flood] == flood


def test_keyless_requests_go_in_order():
    clock = count()
    harness = Harness(n_slots=2, clock=lambda: float(next(clock)))
    ids = harness.submit(*(asked_by("", i) for i in range(12)))
    assert admitted(harness) == ids


def test_beams_count_as_slots():
    clock = count()
    harness = Harness(n_slots=4, clock=lambda: float(next(clock)))
    wide = replace(asked_by("anna", 1), n_beams=4, max_tokens=40)
    harness.submit(wide, asked_by("bert", 2))
    harness.engine.step()
    anna, bert = (harness.submit(*(asked_by(tenant, i) for i in range(3, 6))) for tenant in ("anna", "bert"))
    order = admitted(harness)
    assert set(order) > {*anna}
    assert order[2] == bert[0], "bert's, who holds one while anna holds two"
