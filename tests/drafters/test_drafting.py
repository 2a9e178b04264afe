"""What the drafter computes: guesses, how many decodes they take, and how sessions share the model."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest

from server.drafting.model_drafter import SHARED_ROWS
from server.llama.backend import Batch, Logits
from server.sampling.draw import draw
from server.sampling.params import SamplingParams
from server.speculation.wire.messages import Close
from tests.drafters.scene import ENDLESS, PROMPT, Scene, commit, open_, told
from tests.fake_backend import IM_END, FakeBackend, FakeModel


def test_catching_up_takes_one_decode():
    scene = Scene()
    scene.send(open_())
    assert scene.backend.widths == [len(PROMPT), 1, 1, 1, 1, 1]
    assert scene.drafted() == told(6)


def test_confirmed_guesses_continue():
    scene = Scene()
    scene.send(open_())
    before = len(scene.backend.widths)
    scene.send(commit(*scene.drafted()[:3]))
    assert scene.backend.widths[before:] == [1, 1, 1]
    assert scene.drafted() == told(9)


def test_a_divergence_evaluates_only_the_gap():
    scene = Scene()
    scene.send(open_())
    guesses = scene.drafted()
    wrong = (guesses[1] + 1) % 256
    before = len(scene.backend.widths)
    scene.send(commit(guesses[0], wrong, 65))
    assert scene.backend.widths[before:] == [2, 1, 1, 1, 1, 1]
    assert scene.drafted()[6:] == told(6, (*PROMPT, guesses[0], wrong, 65))


def test_lead_ahead_costs_one_decode():
    scene = Scene()
    scene.send(open_())
    guesses = scene.drafted()
    before = len(scene.backend.widths)
    scene.send(commit(*guesses, *b"and more"))
    assert scene.backend.widths[before] == 1 + len(b"and more")  # its own last guess was not evaluated


@pytest.mark.parametrize("busy", [False, True])
def test_nothing_is_shared_with_another_salt(busy: bool):
    scene = Scene()
    scene.send(open_(salt="one"))
    if not busy:
        scene.send(Close("lead", 1, True))
    for session, salt, n_evaluated in ((2, "another", len(PROMPT)), (3, "one", 1)):
        before = len(scene.backend.widths)
        scene.send(open_(session=session, salt=salt))
        assert scene.backend.widths[before] == n_evaluated
        assert scene.drafted(session) == told(6)


def test_the_cache_is_kept_across_turns():
    scene = Scene()
    scene.send(open_())
    guesses = scene.drafted()
    scene.send(commit(*guesses), Close("lead", 1, True))
    later = (*PROMPT, *guesses, *b"next turn")
    before = len(scene.backend.widths)
    scene.send(open_(later, session=2))
    assert scene.backend.widths[before] <= 1 + len(b"next turn")
    assert scene.drafted(2) == told(6, later)


def test_the_leads_sampling_and_noise_are_mirrored():
    model = FakeModel(eog_rate=0.0, sharpness=1.0)
    batch = Batch()
    batch.extend(0, 0, PROMPT, 1)
    row = FakeBackend(model).decode(batch)[0]
    draws = {
        sampling: draw(row, sampling, len(PROMPT))
        for sampling in (SamplingParams(1.0, top_k=0, top_p=1.0, min_p=0.0, seed=i) for i in range(20))
    }
    sampling, expected = next((s, t) for s, t in draws.items() if t != int(row.argmax()))
    scene = Scene(FakeBackend(model))
    scene.send(open_(sampling=sampling))
    assert scene.lead.drafts()[0].tokens[0] == expected


def test_drafting_stops_at_text_end():
    scene = Scene(FakeBackend(FakeModel(eog_rate=1.0)))
    scene.send(open_())
    assert scene.drafted() == [IM_END]


def test_context_end_is_told_once(caplog: pytest.LogCaptureFixture):
    scene = Scene(FakeBackend(ENDLESS, n_ctx=len(PROMPT) + 3))
    with caplog.at_level("INFO", "duo.drafter"):
        scene.send(open_(max_ahead=50))
        scene.send(commit(*scene.drafted()[:1]))
    assert len(scene.drafted()) == 3
    assert [
        record.message for record in caplog.records if "end of this model's context" in record.message
    ] == [
        f"not drafting for a session of lead: it has reached the end of this model's context of "
        f"{len(PROMPT) + 3} tokens"
    ]


def test_an_unlikely_path_is_not_followed():
    scene = Scene(FakeBackend(FakeModel(eog_rate=0.0, sharpness=0.1)))
    scene.send(open_(max_ahead=50))
    assert 0 < len(scene.drafted()) < 5


def test_a_model_that_computes_nonsense_is_survived():
    class Broken(FakeBackend):
        def decode(self, batch: Batch) -> Logits:
            return np.full_like(super().decode(batch), math.nan)

    scene = Scene(Broken(ENDLESS))
    scene.send(open_())
    assert [draft.confidences for draft in scene.lead.drafts()] == [b"\0"]


# -- several sessions


def test_sessions_share_decodes():
    scene = Scene()
    prompts = {i: (*PROMPT[:20], i) for i in range(1, 4)}
    scene.send(*(open_(prompt, session=i) for i, prompt in prompts.items()))
    assert scene.backend.widths == [63, 3, 3, 3, 3, 3]
    for i, prompt in prompts.items():
        assert scene.drafted(i) == told(6, prompt)


def test_long_prompt_delays_no_drafts():
    scene = Scene(FakeBackend(ENDLESS, n_batch=512))
    scene.bus.send("drafter", open_(max_ahead=4))
    scene.bus.send("drafter", open_(PROMPT * 8, session=2, max_ahead=1))
    scene.settle()
    assert max(scene.backend.widths[:4]) <= SHARED_ROWS
    assert (len(scene.drafted(1)), len(scene.drafted(2))) == (4, 1)


def test_excess_sessions_take_turns():
    scene = Scene(FakeBackend(ENDLESS, n_seqs=1))
    scene.send(open_(session=1), open_((9, 8, 7), session=2))
    assert scene.drafted(1)
    assert not scene.drafted(2)
    scene.send(Close("lead", 1, False))
    assert scene.drafted(2) == told(6, (9, 8, 7))


def test_full_cache_frees_closed_sessions():
    scene = Scene(FakeBackend(ENDLESS, n_cells=100))
    scene.send(open_())
    scene.send(Close("lead", 1, True))
    scene.send(open_(PROMPT[::-1], session=2))
    assert scene.drafted(2) == told(6, PROMPT[::-1])


def test_outgrowing_sessions_block_nobody():
    sure = FakeModel(eog_rate=0.0, sharpness=1e4)
    scene = Scene(FakeBackend(sure, n_cells=160))
    prompts = {1: PROMPT, 2: PROMPT[::-1]}
    scene.send(*(open_(prompt, session=i, max_ahead=40) for i, prompt in prompts.items()))
    [done] = [i for i in prompts if len(scene.drafted(i)) == 40]
    left = 3 - done
    assert 0 < len(scene.drafted(left)) < 40
    scene.send(Close("lead", done, True))
    assert scene.drafted(left) == told(40, prompts[left], sure)


def test_drafter_sleeps_when_unable():
    scene = Scene(FakeBackend(ENDLESS, n_seqs=1))
    scene.send(open_(session=1), open_((9, 8, 7), session=2))
    threading.Timer(0.05, scene.worker.stop).start()
    assert not scene.worker.turn(), "returned without anything to do"


def test_a_model_that_cannot_forget_begins_anew(caplog: pytest.LogCaptureFixture):
    scene = Scene(FakeBackend(ENDLESS, can_trim=False))
    scene.send(open_())
    scene.send(commit(65, 66))
    assert scene.drafted()[-6:] == told(6, (*PROMPT, 65, 66))
    scene.send(commit(65, 66, 67), Close("lead", 1, True), open_((*PROMPT, 68), session=2))
    assert scene.drafted(2) == told(6, (*PROMPT, 68))
    assert "decode of drafts failed" not in caplog.text


def test_long_prompt_holds_no_other_session_up():
    backend = FakeBackend(ENDLESS, n_batch=512)
    scene = Scene(backend)
    scene.send(open_(PROMPT, 1))  # which has all its guesses
    backend.widths.clear()
    scene.send(open_(tuple(32 + i % 90 for i in range(600)), 2))
    assert sum(backend.widths) >= 600
    assert max(backend.widths) <= SHARED_ROWS
