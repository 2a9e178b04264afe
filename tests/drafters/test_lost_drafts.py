"""A draft that the lead never got costs an exchange, not the rest of the reply."""

from __future__ import annotations

import pytest

from server.drafting.draft_session import GREEDY
from server.engine.proposer import OpenedSession
from server.engine.request import Speculation
from server.speculation.wire.messages import Draft, Message, Open
from tests.drafters.scene import LEAD, PROMPT, told
from tests.drafters.test_leases import Pair
from tests.server.speculation.driving import committed

N_TOKENS = 80


class Reply(Pair):
    """A reply that equals the drafter's guesses except for the tokens that a test puts in.

    The n_lost-th draft does not arrive.
    """

    def __init__(self, n_lost: int | None = None) -> None:
        super().__init__()
        self.n_drafts = 0
        self.tokens = list(PROMPT)
        self._truth = told(N_TOKENS)
        self._n_lost = n_lost
        self.is_lost = self._loses
        self.lead.open(OpenedSession(1, self.tokens, GREEDY, Speculation()))
        self.say(self._truth[0])

    def _loses(self, message: Message) -> bool:
        self.n_drafts += isinstance(message, Draft)
        return isinstance(message, Draft) and self.n_drafts == self._n_lost

    def say(self, token: int) -> None:
        self.tokens.append(token)
        committed(self.lead, 1)
        self.settle()

    def go_on(self) -> None:
        self.say(self._truth[len(self.tokens) - len(PROMPT)])

    @property
    def n_opens(self) -> int:
        return sum(isinstance(message, Open) for message in self.sent)

    @property
    def counts(self) -> dict[str, int]:
        [record] = self.lead.drafters()
        return record.counts

    @property
    def is_guessed(self) -> bool:
        """True if the lead has guesses for the next token."""
        [speculated] = self.lead._sessions.values()  # pyright: ignore[reportPrivateUsage]
        return speculated.tree.n_below > 0


@pytest.mark.parametrize("n_lost", [1, 2, 3, 20])
def test_lost_draft_costs_one_exchange(n_lost: int):
    reply = Reply(n_lost)
    while reply.n_drafts <= n_lost:
        reply.go_on()  # ends with the draft after the lost one
    while len(reply.tokens) < len(PROMPT) + N_TOKENS:
        assert reply.is_guessed
        reply.go_on()
    assert reply.counts.get("lost", 0) <= 1
    assert reply.n_opens <= 2, "it is told the session again once"


def test_wrong_guess_needs_no_resending():
    """The drafter notices by itself that drafts under way are lost."""
    reply = Reply()
    for _ in range(4):
        reply.pool.hold(LEAD.id)
        for _ in range(3):
            reply.say(3)  # never guessed: the text goes on differently
        reply.pool.release(LEAD.id)
        reply.settle()
        assert reply.is_guessed
    assert reply.counts["stale"] > 0
    assert (reply.counts.get("lost", 0), reply.n_opens) == (0, 1)
