"""A draft model in the lead rests in sessions that it misleads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from server.engine.proposer import NOTHING, ROOT, Ask, OpenedSession, Planned, Proposal, TimedStep
from server.engine.request import Speculation
from server.estimators import Median
from server.speculation.gating.acceptance import Acceptance, SessionAcceptance
from server.speculation.gating.balance import ASSUMED, HEARD, STAKE, TRIED
from server.speculation.gating.costs import StepCosts
from server.speculation.gating.credit import LOSS
from server.speculation.gating.pricing import Pricing, StepPrice
from server.speculation.gating.widths import Widths
from server.speculation.groups import FIRST, StepCharge
from server.speculation.policy import Policy
from server.speculation.sources.remote import RemoteDrafters
from server.speculation.sources.synchronous import InlineModel
from server.speculation.speculated import Speculated
from server.speculation.speculator import Speculator
from server.speculation.weighing import Weighing
from tests.server.speculation.test_groups import with_a_drafter
from tests.server.speculation.test_speculator import Scene
from tests.support import PROMPT, request

SECONDS = {1: 1.0, 2: 1.5, 4: 2.5}


@pytest.mark.parametrize("row_s", [0.05, 0.5])
def test_a_reply_whose_guesses_are_all_wrong_pays_for_a_few_of_them(row_s: float):
    """However good those of the replies before were."""
    scene = Scene(error=0.0, row_s=row_s)
    rates = [scene.rate(request((*PROMPT, i), max_tokens=60)) for i in range(4)]
    assert rates[-1] > 1.2
    scene.drafts.confused = 1.0
    scene.target.widths.clear()
    rate = scene.rate(request((*PROMPT, 9), max_tokens=200))
    assert 0 < sum(width > 1 for width in scene.target.widths[1:]) <= 2 * TRIED
    td_s, _ = scene.drafts.timing
    n_guesses = STAKE // (row_s + td_s)
    assert max(scene.target.widths[1:]) <= 1 + 2 * n_guesses, "each with a second choice at most"
    assert rate > 0.95


class Weighed:
    """One session. seconds: of a step by rows."""

    def __init__(self) -> None:
        told = OpenedSession(1, list(PROMPT), request().sampling, Speculation())
        self.session = Speculated(1, told, SessionAcceptance(Acceptance()), None)
        self.pricing = Pricing(StepCosts(4, SECONDS), Widths({}), again=True)
        self.weighing = Weighing({1: self.session}, self.pricing, None)

    def price(self, n_rows: int) -> StepPrice:
        return self.pricing.step(1, n_rows, 0, may_pad=False)

    def charged(self, n_rows: int, *sources: str) -> float:
        """Tokens that guesses of these sources cost the session. n_rows: its rows beside them."""
        price = self.price(n_rows)
        n, asks = len(sources), [Ask(1, 8, n_pending=n_rows)]
        self.weighing.charge_again(asks, price)
        self.weighing.charge(asks, [Proposal((7,) * n, (ROOT,) * n, sources)], price)
        return self.session.n_lost

    def step(self, n_lost: float = 0.0, *, inside: bool = True) -> None:
        self.session.n_lost = n_lost
        self.weighing.weigh(self.session, {}, inside=inside)


@pytest.mark.parametrize(
    ("sources", "n_drafted"),
    [((), 0), (("draft",), 1), (("draft", "lookup"), 1), (("lookup", "grammar", "prediction"), 0)],
)
def test_only_guesses_of_models_are_charged(sources: tuple[str, ...], n_drafted: int):
    weighed = Weighed()
    each = weighed.pricing.of_guess(weighed.price(1), len(sources))
    assert weighed.charged(1, *sources) == pytest.approx(n_drafted * each)
    assert not n_drafted or each > 0.2


def test_rows_that_a_wrong_guess_has_evaluated_again_are_charged():
    weighed = Weighed()
    assert weighed.charged(2) == weighed.pricing.of_row_again(weighed.price(2)) > 0.2


def test_a_drafter_that_is_heard_and_never_right_rests_although_it_is_not_known_what_messages_take():
    weighed = Weighed()
    weighed.session.heard = True
    for _ in range(HEARD):
        assert not weighed.session.balance.resting
        weighed.step()
    assert weighed.session.balance.resting


def test_a_rest_is_counted_in_steps_in_which_a_model_may_guess():
    weighed = Weighed()
    while not weighed.session.balance.resting:
        weighed.step(n_lost=0.1)
    n = round(TRIED * 0.1 / LOSS)
    for _ in range(2 * n):
        weighed.step(inside=False)
    assert weighed.session.balance.resting
    for _ in range(n):
        weighed.step()
    assert not weighed.session.balance.resting
    assert not weighed.session.balance.counts


def test_what_a_drafter_costs_is_the_time_that_steps_and_guesses_take_longer_beside_it():
    """The start took steps of four rows for slower than they are. Beside the drafter all take a sixth
    longer, and guesses of the draft model in the lead four times as long."""
    remote, record = with_a_drafter()
    inline = cast(InlineModel, SimpleNamespace(td=Median(1), source="draft"))
    costs = StepCosts(8, {1: 1.0, 4: 3.0})
    speculator = Speculator(Policy(lookup=False), remote=remote, inline=inline, costs=costs)
    groups, charges = speculator.groups, list[tuple[StepCharge, bool]]()
    assert groups is not None
    stepped = groups.stepped

    def heard(step: TimedStep, charge: StepCharge) -> None:
        charges.append((charge, record.resting))
        stepped(step, charge)

    groups.stepped = heard
    guesses = Proposal((1, 2, 3), (-1, 0, 1), ("draft",) * 3)
    for _ in range(4):
        for is_wide in (True, False) * 4:
            speculator.drain(1)
            inline.td.observe(0.1 if record.resting else 0.4)
            decode_s = (1.0 if record.resting else 1.15) * (2.0 if is_wide else 1.0)
            spent_s = 3 * inline.td.value * is_wide
            planned = Planned([guesses if is_wide else NOTHING], 0, spent_s)
            n_rows = 4 if is_wide else 1
            speculator.stepped(planned, TimedStep(n_rows, 9, decode_s, decode_s + spent_s, 3, 1))
    assert all(charge.crowded == 0.0 for charge, _ in charges[:FIRST])
    found = [charge for charge, resting in charges if not resting][-2:]
    plain, wide = sorted(found, key=lambda charge: charge.crowded)
    rate = speculator.pricing.plain_rate
    assert plain.crowded == pytest.approx(rate * 0.15 * 1.15, rel=0.1)
    assert wide.crowded == pytest.approx(rate * (0.15 * 2.3 + 3 * 0.3), rel=0.1)
    assert wide.saved == pytest.approx(rate * 0.1)
    assert wide.most == pytest.approx(rate * 0.15, rel=0.2), "half of the steps had three guesses"


def test_what_is_charged_for_steps_that_were_not_timed_but_searching_which_was(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(Pricing, "crowding", property(lambda _: 1.2))
    pricing, step = Pricing(StepCosts(8, {1: 1.0}), Widths({}), again=False), TimedStep(1, 9, 1.0, 1.0, 1, 1)
    inline = cast(InlineModel, SimpleNamespace(td=Median(1), source="draft"))
    inline.td.observe(0.1)
    weighing = Weighing({}, pricing, cast(RemoteDrafters, SimpleNamespace(n_told=1)), inline)
    planned = Planned([NOTHING], spent_s=0.3)
    pricing.observe(planned, step)
    weighing.stepped(planned, step)
    one, three = (weighing.stepped(planned, step, 0.25, calm=False, n_asked=n) for n in (1, 3))
    assert tuple(one) == pytest.approx((ASSUMED, 0.2, 0.25, 0.1, 0.3, 1.0))
    assert tuple(three) == pytest.approx((3 * ASSUMED, 0.6, 0.25, 0.1, 0.9, 1.0))


def test_steps_with_prompts_which_are_not_timed_cost_as_much_as_the_next_one(monkeypatch: pytest.MonkeyPatch):
    speculator = Speculator(Policy(lookup=False), costs=StepCosts(8, {1: 1.0}))
    speculator.open(OpenedSession(1, list(PROMPT), request().sampling, Speculation()))
    charges = list[StepCharge]()

    def cost(*_: object, n_asked: int, **__: object) -> StepCharge:
        return StepCharge(told=n_asked)

    def heard(_: TimedStep, charge: StepCharge) -> None:
        charges.append(charge)

    monkeypatch.setattr(Weighing, "stepped", cost)
    monkeypatch.setattr(speculator.groups, "stepped", heard)
    for n_rows in (20, 20, 1):
        planned = speculator.propose([Ask(1, 4)], n_rows, 0)
    for _ in range(2):
        speculator.stepped(planned, TimedStep(1, 9, 1.0, 1.0, 1, 1))
        planned = speculator.propose([Ask(1, 4)], 1, 0)
    assert charges == [StepCharge(told=3), StepCharge(told=1)]
