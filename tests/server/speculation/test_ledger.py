"""Models pause in sessions that they mislead, and what is charged to whom."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from server.engine.proposer import NOTHING, OpenedSession, Outcome, Proposal, Step, StepTiming, Upcoming
from server.engine.request import Speculation
from server.estimators import Median
from server.speculation.account import LOSS
from server.speculation.drafter_host import BASELINE_STEPS, Charge
from server.speculation.hits import HitRates, SessionHitRates
from server.speculation.ledger import EVIDENCE_ALONE, EVIDENCE_HEARD, Ledger
from server.speculation.policy import Policy
from server.speculation.rates import ASSUMED
from server.speculation.shape_times import ShapeTimes
from server.speculation.speculated import IN_SESSION, Speculated
from server.speculation.step import Drafting, DraftPath, DraftPlan, Guessers
from server.speculation.step_times import StepTimes
from tests.server.speculation.ledger_scene import TIMING, Taught
from tests.server.speculation.test_groups import with_a_drafter
from tests.server.speculation.test_speculator import Scene
from tests.support import PROMPT, request

TRIED, HEARD = (int(IN_SESSION().patience // each) for each in (EVIDENCE_ALONE, EVIDENCE_HEARD))
MODEL = Guessers(inline=True, may_model=True)


@pytest.mark.parametrize("row_s", [0.05, 0.5])
def test_wrong_reply_pays_few_guesses(row_s: float):
    """Earlier good replies do not change that."""
    scene = Scene(error=0.0, row_s=row_s)
    rates = [scene.rate(request((*PROMPT, i), max_tokens=60)) for i in range(4)]
    assert rates[-1] > 1.2
    scene.drafts.confused = 1.0
    scene.target.widths.clear()
    rate = scene.rate(request((*PROMPT, 9), max_tokens=200))
    assert 0 < sum(width > 1 for width in scene.target.widths[1:]) <= 2 * TRIED
    td_s, _ = scene.drafts.timing
    n_guesses = IN_SESSION().per_step // (row_s + td_s)
    assert max(scene.target.widths[1:]) <= 1 + 2 * n_guesses, "each with a second choice at most"
    assert rate > 0.95


class Weighed:
    """One session, and what a ledger learns of it."""

    def __init__(self, times: StepTimes | None = None) -> None:
        told = OpenedSession(1, list(PROMPT), request().sampling, Speculation())
        self.session = Speculated(1, told, SessionHitRates(HitRates()), None)
        self.account = self.session.account
        self.ledger = Ledger(
            Policy(lookup=False), times or StepTimes(4), {1: self.session}, Median(1), "draft"
        )

    def step(self, cost: float = 0.0, *, guessers: Guessers = MODEL, path: DraftPath | None = None) -> None:
        """Take a step whose guesses cost the session `cost` tokens and were not verified."""
        plan = DraftPlan(guessers=guessers, charges={1: cost} if cost else {})
        plan.step, plan.rows = Upcoming(1, 1), 1
        if path:
            plan.drafting = Drafting("draft", 0.0, True, 0.0, float, (), paths={1: path})
        self.ledger.learn(Step(plan, None, [Outcome(1, 1, {})]))


def test_never_right_drafter_pauses():
    weighed = Weighed()
    weighed.session.heard = True
    for _ in range(HEARD):
        assert not weighed.account.paused
        weighed.step()
    assert weighed.account.paused


def test_pause_counts_guessing_steps():
    weighed = Weighed()
    while not weighed.account.paused:
        weighed.step(0.1)
    n = round(TRIED * 0.1 / LOSS)
    for _ in range(2 * n):
        weighed.step(guessers=Guessers())
    assert weighed.account.paused
    for _ in range(n + 1):
        weighed.step()
    assert not weighed.account.paused
    assert not weighed.account.has_evidence


def path_of(guess: int, *, is_probe: bool) -> DraftPath:
    return DraftPath(1, 1, 0.0, (), tokens=[guess], is_probe=is_probe)


@pytest.mark.parametrize("is_right", [True, False])
def test_right_probe_raises_the_allowance(is_right: bool):
    weighed = Weighed()
    weighed.step(0.1, path=path_of(PROMPT[-1] if is_right else 0, is_probe=True))
    assert weighed.account.allowance == IN_SESSION().per_step + is_right
    assert weighed.account.net == (0.0 if is_right else -0.1)


@pytest.mark.parametrize("padded", [True, False])
def test_unverified_right_guess_is_free(padded: bool):
    """Its step was plain since a wider one did not pay; elsewhere the guess was made in vain."""
    weighed = Weighed(StepTimes(4, shapes=ShapeTimes({1: 1.0, 4: 1.1} if padded else {})))
    weighed.step(0.1, path=path_of(PROMPT[-1], is_probe=False))
    assert weighed.account.net == (0.0 if padded else -0.1)


def test_drafter_costs_slower_decodes(
    monkeypatch: pytest.MonkeyPatch,
):
    """The start overestimated steps of four rows.

    Beside the drafter all take a sixth longer, and guesses of the draft model in the lead four times as long.
    """
    remote, record = with_a_drafter()
    td, charges = Median(1), list[tuple[Charge, bool, float]]()
    taught = Taught(remote, td, seconds=[1.0, 5 / 3, 7 / 3, 3.0])
    priced = taught.ledger

    def heard(*of_it: object) -> Charge:
        charge = Ledger._charge(priced, *of_it)  # type: ignore[arg-type]
        charges.append((charge, record.paused, priced.rates.undrafted_rate))
        return charge

    monkeypatch.setattr(priced, "_charge", heard)
    guesses = Proposal((1, 2, 3), (-1, 0, 1), ("draft",) * 3)
    for _ in range(4):
        for is_wide in (True, False) * 4:
            guessers = taught.serve()
            td.observe(0.1 if record.paused else 0.4)
            decode_s = (1.0 if record.paused else 1.15) * (2.0 if is_wide else 1.0)
            plan = DraftPlan([guesses if is_wide else NOTHING], spent_s=3 * td.value * is_wide)
            plan.step = Upcoming(1, 1)
            plan.rows, plan.guessers = 4 if is_wide else 1, guessers
            plan.working = list(priced.machines) if record.n_assigned else []
            timing = StepTiming(plan.rows, 9, decode_s, decode_s + plan.spent_s, 3, 1)
            priced.learn(Step(plan, timing, ()))
    assert all(charge.crowded == 0.0 for charge, _, _ in charges[:BASELINE_STEPS])
    found = [(charge, rate) for charge, paused, rate in charges if not paused][-2:]
    (plain, plain_rate), (wide, rate) = sorted(found, key=lambda one: one[0].crowded)
    assert plain.crowded == pytest.approx(plain_rate * 0.15 * 1.15, rel=0.1)
    assert wide.crowded == pytest.approx(rate * (0.15 * 2.3 + 3 * 0.3), rel=0.1)
    assert wide.saved == pytest.approx(rate * 0.1)
    assert wide.most_saved == pytest.approx(rate * 0.15, rel=0.2), "half of the steps had three guesses"


def test_untimed_steps_cost_the_next(monkeypatch: pytest.MonkeyPatch):
    """Two steps have rows of prompts, before one without."""
    found, ledger = list[int](), Weighed().ledger

    def charge(*of_it: object) -> Charge:
        found.append(cast(int, of_it[-1]))
        return Charge()

    monkeypatch.setattr(ledger, "_charge", charge)
    for timing in (None, None, TIMING, TIMING):
        plan = DraftPlan(guessers=MODEL)
        plan.step, plan.rows = Upcoming(1, 1), 1
        ledger.learn(Step(plan, timing, ()))
    assert found == [3, 1]


def test_messages_and_slow_decodes_charge(monkeypatch: pytest.MonkeyPatch):
    remote, _ = with_a_drafter()
    taught = Taught(remote, Median(1), seconds=[1.0])
    taught.serve()
    ledger = taught.ledger
    monkeypatch.setattr(type(ledger.rates), "crowding", property(lambda _: 1.2))
    ledger.rates.undrafted_rate = 1.0
    ledger._td.observe(0.1)  # type: ignore[union-attr]
    ledger._sessions = {1: cast(Speculated, SimpleNamespace(drafters={"a": 1}))}
    plan = DraftPlan([NOTHING], spent_s=0.3, guessers=Guessers(inline=True, drafters=True))
    Ledger._charge(ledger, plan, TIMING, True, 1)
    one, three = (Ledger._charge(ledger, plan, TIMING, False, n) for n in (1, 3))
    assert tuple(one) == pytest.approx((ASSUMED, 0.2, 0.1, 0.3, 1.0))
    assert tuple(three) == pytest.approx((3 * ASSUMED, 0.6, 0.1, 0.9, 1.0))
