"""What one request of a client costs: added up from the events of all its generations.

The HTTP side sets CURRENT; generations submitted in that context are put on its account.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field

from server.engine.events import Committed, Event, Started, Tally


@dataclass
class Account(Tally):
    """Tokens of the request with this id so far. A prompt of several replies counts for each. For the event
    loop only."""

    id: str = field(kw_only=True)
    n_generations: int = 0
    n_prompt: int = 0
    n_cached: int = 0

    def see(self, event: Event) -> None:
        if isinstance(event, Started):
            self.n_generations += 1
            self.n_prompt += event.n_prompt
            self.n_cached += event.n_cached
        elif isinstance(event, Committed):
            self.count(event)


CURRENT: ContextVar[Account | None] = ContextVar("account", default=None)
