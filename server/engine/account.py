"""What one request of a client costs: added up from the events of all its generations.

The HTTP side sets CURRENT; generations submitted in that context are put on its account.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

from server.engine.events import Committed, Event, Started


@dataclass(slots=True)
class Account:
    """Tokens of the request with this id so far. A prompt of several replies counts for each. For the event
    loop only."""

    id: str
    n_generations: int = 0
    n_prompt: int = 0
    n_cached: int = 0
    n_predicted: int = 0
    n_drafted: int = 0
    n_accepted: int = 0

    def see(self, event: Event) -> None:
        match event:
            case Started():
                self.n_generations += 1
                self.n_prompt += event.n_prompt
                self.n_cached += event.n_cached
            case Committed():
                self.n_predicted += len(event.tokens)
                self.n_drafted += event.n_drafted
                self.n_accepted += len(event.sources) - event.sources.count(None)
            case _:
                pass


CURRENT: ContextVar[Account | None] = ContextVar("account", default=None)
