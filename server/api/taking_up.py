"""Continue stored replies whose lead has died."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from server.api import problem
from server.api.chat.chat_request import ChatRequest
from server.api.partial_answer import PartialAnswer, partial_answer_of
from server.api.stages.prompted import Prompted
from server.api.stages.remote_urls import fetch_pictures
from server.api.stages.submit import prepared_chat
from server.engine.request_account import CURRENT, RequestAccount
from server.errors import BusyError, DuoError, StoreError
from server.replies.store import ORPHAN_POLL_S, Orphan

if TYPE_CHECKING:
    from server.api.services import Services

GoOn: TypeAlias = "Callable[[Services, Orphan, PartialAnswer], Awaitable[None]]"
"""Begins to generate the rest of a reply. Raises DuoError if that is impossible."""
Fail: TypeAlias = "Callable[[Services, Orphan, DuoError], Awaitable[None]]"
"""Appends an event saying that a reply cannot be continued."""
Ways: TypeAlias = Mapping[str, tuple[GoOn, Fail]]
"""For each kind of reply, named in its recipe: how to continue it, and how to report that it failed."""

logger = logging.getLogger("duo.api")


class TakingUp:
    """Finds replies whose lead has died (orphans), and continues them. For the event loop only."""

    def __init__(self, services: Services, ways: Ways) -> None:
        self._services = services
        self._ways = ways
        self._tasks = set[asyncio.Task[None]]()
        if services.replies.members is not None:
            self._keep(self._poll())

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _keep(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _poll(self) -> None:
        """Poll for orphans, and take up as many as there are free slots.

        If no slot is free, take up one per poll: leads with free slots can then take up the others.
        """
        places, replies = self._services.places, self._services.replies
        while not places.closed:
            await asyncio.sleep(ORPHAN_POLL_S)
            with contextlib.suppress(StoreError):
                for orphan in await replies.take_up(places.n_at_once or min(1, places.n_free)):
                    self._keep(self._go_on(orphan))

    async def _go_on(self, orphan: Orphan) -> None:
        """Begin to generate the rest of a reply; if that is impossible, end it with an error event."""
        id, owner = orphan.id, orphan.owner
        CURRENT.set(RequestAccount(id=id, tenant=owner.tenant))
        go_on, fail = self._ways[orphan.recipe["kind"]]
        failure: DuoError | None = None
        try:
            begun = partial_answer_of(orphan)
            if begun.closed:
                orphan.log.end()
                return
            await go_on(self._services, orphan, begun)
            logger.info("%s goes on after event %d, which another lead wrote", id, begun.n_events - 1)
        except BusyError:
            self._services.replies.leave(owner.salt, id)
        except DuoError as error:
            failure = error
        except Exception as error:
            failure = problem.defect(f"the reply {id}", error)
        if failure is not None:
            await fail(self._services, orphan, failure)
            orphan.log.end()


async def asked_again(
    services: Services, body: ChatRequest, orphan: Orphan, begun: PartialAnswer
) -> Sequence[Prompted]:
    """Return the prompt of a chat whose reply another lead began, with the tokens of `begun` added."""
    if services.remote is not None:
        await fetch_pictures(services.remote, body)
    prompt = await services.prompt_work.run(prepared_chat, services, body)
    return begun.asked([prompt], orphan.recipe, services.spans)
