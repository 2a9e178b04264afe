"""A drafter that is drafted for: it publishes what it would without, in fewer decodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from drafters.cascade import Cascade
from drafters.own_lookup import OwnLookup
from server.drafting.draft_session import GREEDY
from server.drafting.model_drafter import ModelDrafter
from server.drafting.own_drafts import OwnDrafts
from server.errors import BackendError
from server.llama.backend import Batch, Logits
from server.sampling.params import SamplingParams
from server.speculation.sources.draft_model import DraftModel
from server.speculation.wire.messages import Close, Commit, Draft, chain_next, chain_start
from tests.drafters.scene import PROMPT, Scene, open_
from tests.fake_backend import FakeBackend, FakeModel

LARGE_S, SMALL_S = 0.010, 0.001  # of a decode
AHEAD = 40
WARM = SamplingParams(temperature=0.8, seed=7)
TARGET = FakeModel(eog_rate=0.0, sharpness=12.0)


@dataclass
class Time:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(slots=True)
class Timed(FakeBackend):
    """The toy, with decodes that take time by the clock."""

    time: Time = field(default_factory=Time)
    decode_s: float = 0.0
    fails_after: int = 1 << 30  # decodes

    def decode(self, batch: Batch) -> Logits:
        self.time.now += self.decode_s
        if len(self.widths) >= self.fails_after:
            raise BackendError("it broke")
        return FakeBackend.decode(self, batch)


class Periodic(Timed):
    """Says the alphabet, over and over."""

    def decode(self, batch: Batch) -> Logits:
        logits = Timed.decode(self, batch)
        said = [token for token, wanted in zip(batch.tokens, batch.wanted, strict=True) if wanted]
        for row, token in zip(logits, said, strict=True):
            row[:] = -60.0
            row[ord("a") + (token + 1 - ord("a")) % 26] = 30.0
        return logits


class Drafting:
    """A drafter with, or without, a smaller model that errs at a share of positions."""

    def __init__(self, error: float | None, *, n_branches: int = 0, small_s: float = SMALL_S) -> None:
        self.time = Time()
        self.large = Timed(TARGET, time=self.time, decode_s=LARGE_S, n_batch=256)
        small = FakeModel(error=error or 0.0, error_seed=5, eog_rate=0.0, sharpness=12.0)
        self.small = Timed(small, time=self.time, decode_s=small_s)
        own = OwnDrafts()
        if error is not None:
            model = DraftModel(self.small, clock=self.time)
            model.rehearse()
            own = self.cascade = Cascade(model, {1: LARGE_S, 8: LARGE_S})
        drafter = ModelDrafter(self.large, n_branches=n_branches, own=own, clock=self.time)
        self.scene = Scene(self.large, drafter=drafter)

    def reply(
        self, n_steps: int, sampling: SamplingParams = GREEDY, session: int = 1, every: int = 4
    ) -> list[list[Draft]]:
        """Return the drafts before each step of a lead, which errs every so often."""
        self.scene.send(open_(PROMPT, session, AHEAD, sampling))
        reply, chain, told = list[int](), chain_start(PROMPT), list[list[Draft]]()
        known = {chain: reply}
        for step in range(n_steps):
            drafts = [d for d in self.scene.lead.drafts() if d.session == session]
            told.append(drafts[sum(map(len, told)) :])
            read(told[-1], known)
            longest = max((text for text in known.values() if text[: len(reply)] == reply), key=len)
            new = longest[len(reply) :][: 1 + step % 3]
            if step % every == every - 1:
                new[-1] = (new[-1] + 1) % 200
            base = len(PROMPT) + len(reply)
            for token in new:
                chain = chain_next(chain, token)
            reply = known[chain] = reply + new
            self.scene.send(Commit(session, base, chain, tuple(new)))
        return told


def read(drafts: Sequence[Draft], known: dict[int, list[int]]) -> None:
    """Add the texts that these drafts guess to those that are known, by their chain hash."""
    for draft in drafts:
        chain, text = draft.chain, known[draft.chain]
        for token in draft.tokens:
            chain, text = chain_next(chain, token), [*text, token]
            known[chain] = text


def guesses(told: list[list[Draft]]) -> list[list[tuple[int, int, int]]]:
    """Return position, token and confidence of every guess before each step."""
    return [
        sorted(
            (draft.base + i, draft.tokens[i], draft.confidences[i])
            for draft in drafts
            for i in range(len(draft.tokens))
        )
        for drafts in told
    ]


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("error", [0.0, 0.3, 1.0])
def test_drafts_are_the_models_own(sampling: SamplingParams, error: float):
    plain, cascaded = Drafting(None), Drafting(error)
    assert guesses(cascaded.reply(30, sampling)) == guesses(plain.reply(30, sampling))


def test_right_guesses_save_decodes():
    plain, cascaded = Drafting(None), Drafting(0.1)
    plain.reply(40, every=50)
    cascaded.reply(40, every=50)
    assert len(cascaded.large.widths) < 0.6 * len(plain.large.widths)
    assert cascaded.time.now < 0.75 * plain.time.now


def test_wrong_guesses_cost_little():
    plain, cascaded = Drafting(None), Drafting(1.0, small_s=0.004)
    plain.reply(300, every=50)
    cascaded.reply(300, every=50)
    assert cascaded.time.now < 1.025 * plain.time.now


def test_several_sessions_are_drafted_for():
    plain, cascaded = Drafting(None), Drafting(0.1)
    for one in (plain, cascaded):
        one.scene.send(*(open_(PROMPT[: 20 + i], i, AHEAD) for i in range(1, 4)))
        one.reply(10, session=4, every=50)
    assert cascaded.cascade.n_right > 20
    for session in range(1, 4):
        assert cascaded.scene.drafted(session) == plain.scene.drafted(session)


def test_failed_model_is_done_without():
    plain, cascaded = Drafting(None), Drafting(0.1)
    cascaded.small.fails_after = len(cascaded.small.widths) + 20
    assert guesses(cascaded.reply(40)) == guesses(plain.reply(40))
    assert cascaded.cascade.n_right > 0


def test_branches_stay_beside_own_drafts():
    cascaded = Drafting(0.1, n_branches=4)
    told = cascaded.reply(30)
    assert cascaded.cascade.n_right > 20
    assert sum(len({draft.chain for draft in drafts}) < len(drafts) for drafts in told) > 5  # alternatives


def test_closed_session_leaves_nothing():
    cascaded = Drafting(0.1)
    cascaded.reply(10)
    cascaded.scene.send(Close("lead", 1, keep=False))
    assert not cascaded.large.n_used
    assert not cascaded.small.n_used


def test_lookups_draft_for_a_drafter():
    time = Time()
    large = Periodic(TARGET, time=time, decode_s=LARGE_S, n_batch=256)
    cascade = Cascade(OwnLookup(clock=time), {1: LARGE_S, 8: LARGE_S})
    scene = Scene(large, drafter=ModelDrafter(large, own=cascade, clock=time))
    prompt = PROMPT + tuple(b"abcdefghijklmnopqrstuvwxyzabcdefghijklm")
    scene.send(open_(prompt, 1, AHEAD))
    assert bytes(scene.drafted()[:30]) == b"nopqrstuvwxyzabcdefghijklmnopq"
    assert cascade.n_right == cascade.n_verified >= 14


def test_report_says_what_was_accepted():
    cascaded = Drafting(0.0)
    assert cascaded.cascade.report() == ""
    cascaded.reply(20, every=50)
    n = cascaded.cascade.n_verified
    assert cascaded.cascade.report() == f"{n} of {n} own drafts accepted (1.00)"
