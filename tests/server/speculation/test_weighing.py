"""A draft model in the lead rests in sessions that it misleads."""

from __future__ import annotations

import pytest

from server.engine.proposer import ROOT, Ask, OpenedSession, Proposal
from server.engine.request import Speculation
from server.speculation.gating.acceptance import Acceptance
from server.speculation.gating.balance import HEARD, STAKE, TRIED
from server.speculation.gating.costs import StepCosts
from server.speculation.gating.credit import LOSS
from server.speculation.gating.pricing import Pricing, StepPrice
from server.speculation.gating.widths import Widths
from server.speculation.speculated import Speculated
from server.speculation.weighing import Weighing
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
        self.session = Speculated(1, told, Acceptance(), None)
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
