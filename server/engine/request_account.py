"""Count the tokens of one client's request, from the events of all its generations.

The HTTP side sets CURRENT; generations submitted in that context count for its account.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from server.engine.events import Committed, Event, Started, Tally
from server.tenants import Place, Places


@dataclass
class RequestAccount(Tally):
    """Tokens of one request so far. For the event loop only."""

    id: str = field(kw_only=True)
    tenant: str = ""  # the tenant whose share it takes (tenants.py)
    place: Place | None = None  # place in the queue, kept until its first generation is submitted
    n_generations: int = 0
    n_prompt: int = 0  # tokens of prompts; a prompt with several replies counts once for each
    n_cached: int = 0

    def see(self, event: Event) -> None:
        if isinstance(event, Started):
            self.n_generations += 1
            self.n_prompt += event.n_prompt
            self.n_cached += event.n_cached
        elif isinstance(event, Committed):
            self.count(event)


CURRENT: ContextVar[RequestAccount | None] = ContextVar("account", default=None)


def tenant() -> str:
    """Return the tenant of the current request."""
    account = CURRENT.get()
    return account.tenant if account else ""


@contextmanager
def expected(places: Places) -> Generator[None]:
    """Keep a place in the queue for a generation of this request while its prompt is prepared.

    The place is given back at the end of the with block if no generation took it.

    Raises:
        BusyError: The queue is full.
    """
    account = CURRENT.get()
    if account is None:
        yield
        return
    account.place = kept = places.take(account.tenant)
    try:
        yield
    finally:
        if account.place is kept:  # no generation was submitted
            account.place = None
            kept.give_back()


def place_in(places: Places) -> Place:
    """Return the place kept for this request, or a new one. Raises BusyError."""
    account = CURRENT.get()
    if account is None or account.place is None:
        return places.take(tenant())
    place, account.place = account.place, None
    return place
