"""Share a scarce resource fairly among tenants: decide who may hold more of it, and who is next.

A tenant is an API key if there are several keys. Otherwise everybody is the tenant "": requests are served in
order, and none is refused while a place is free.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping

from server.errors import BusyError


class Place:
    """One place in a queue, taken for a tenant until give_back()."""

    def __init__(self, places: Places, tenant: str) -> None:
        self._held: Counter[str] | None = places.held
        self.tenant = tenant

    def give_back(self) -> None:
        """Give the place back. May be called twice."""
        if self._held is not None:
            self._held[self.tenant] -= 1
            self._held = None


class Places:
    """A limited number of places in a queue. Each tenant may hold at most as many as are still free.

    This is the dynamic threshold of Choudhury and Hahne (1998) with factor 1: n tenants that ask for all
    places they can get leave 1 / (n + 1) of the places to others. The limit does not hold for the first
    `at_once` places, since taking them makes nobody wait.
    """

    def __init__(self, most: int, *, at_once: int = 0) -> None:
        self.most = most
        self.held = Counter[str]()
        self.closed = False
        self._at_once = at_once

    @property
    def n_taken(self) -> int:
        return self.held.total()

    @property
    def n_at_once(self) -> int:
        """Return the number of places that can be taken without making anybody wait; 0 once closed."""
        return 0 if self.closed else max(0, self._at_once - self.n_taken)

    @property
    def n_free(self) -> int:
        return 0 if self.closed else self.most - self.n_taken

    def check_open(self) -> None:
        """Raise BusyError (503) if the places are closed."""
        if self.closed:
            raise BusyError("the server is shutting down", draining=True)

    def take(self, tenant: str = "") -> Place:
        """Take a place. Raises BusyError if none is free, or none that this tenant may have."""
        self.check_open()
        n_free = self.most - self.n_taken
        if n_free <= 0:
            raise BusyError("the server is busy: too many requests are waiting")
        if tenant and self.n_taken >= self._at_once and self.held[tenant] >= n_free:
            raise BusyError("the server is busy: too many requests of this API key are waiting")
        self.held[tenant] += 1
        return Place(self, tenant)


class Turns:
    """Decides which tenant is next: the one with the fewest places, on a tie the one served longest ago.

    One number is stored for each tenant that has ever had a turn.
    """

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._n = 0

    def rank(self, tenant: str, held: Mapping[str, int]) -> tuple[int, int]:
        """Return a tenant's rank; the lowest rank is next. `held`: how many places each tenant has now."""
        return held.get(tenant, 0), self._last.get(tenant, 0)

    def took(self, tenant: str) -> None:
        self._n += 1
        self._last[tenant] = self._n


class FairSemaphore:
    """A semaphore that admits n tasks at a time, and lets tenants take turns. For one event loop."""

    def __init__(self, n: int, waiting: Places) -> None:
        self._n_free = n
        self._places = waiting
        self._turns = Turns()
        self._inside = Counter[str]()
        self._waiting: dict[asyncio.Future[None], Place] = {}  # in order of arrival

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    async def enter(self, tenant: str = "") -> None:
        """Wait until the tenant is admitted; call leave() afterwards. Raises BusyError if too many wait."""
        if self._n_free and not self._waiting:
            self._begin_turn(tenant)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = place = self._places.take(tenant)
        self._next_tenant()  # all who wait longer may be cancelled
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiting.pop(turn, None)
                place.give_back()
            else:
                self.leave(tenant)
            raise

    def leave(self, tenant: str = "") -> None:
        self._inside[tenant] -= 1
        self._n_free += 1
        self._next_tenant()

    def _next_tenant(self) -> None:
        asking = {turn: place.tenant for turn, place in self._waiting.items() if not turn.done()}
        if asking and self._n_free:
            turn = min(asking, key=lambda one: self._turns.rank(asking[one], self._inside))
            self._waiting.pop(turn).give_back()
            self._begin_turn(asking[turn])
            turn.set_result(None)

    def _begin_turn(self, tenant: str) -> None:
        self._turns.took(tenant)
        self._inside[tenant] += 1
        self._n_free -= 1
