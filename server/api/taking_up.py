"""Go on with stored replies whose lead is gone."""

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
    from server.api.served import Served

GoOn: TypeAlias = "Callable[[Served, Orphan, PartialAnswer], Awaitable[None]]"
"""Begins to write the rest of a reply. Raises DuoError if that is impossible."""
Fail: TypeAlias = "Callable[[Served, Orphan, DuoError], Awaitable[None]]"
"""Appends the event that says that a reply cannot go on."""
Ways: TypeAlias = Mapping[str, tuple[GoOn, Fail]]
"""How to go on with replies of each kind, which their recipes name."""

logger = logging.getLogger("duo.api")


class TakingUp:
    """Looks for orphans as long as the application runs. For the event loop only."""

    def __init__(self, served: Served, ways: Ways) -> None:
        self._served = served
        self._ways = ways
        self._tasks = set[asyncio.Task[None]]()
        if served.replies.members is not None:
            self._keep(self._poll())

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _keep(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _poll(self) -> None:
        """Take up what slots are free for, or one reply at a time if none is: others may have some."""
        places, replies = self._served.places, self._served.replies
        while not places.closed:
            await asyncio.sleep(ORPHAN_POLL_S)
            with contextlib.suppress(StoreError):
                for orphan in await replies.take_up(places.n_at_once or min(1, places.n_free)):
                    self._keep(self._go_on(orphan))

    async def _go_on(self, orphan: Orphan) -> None:
        """Begin to write the rest of a reply; if that is impossible, end it by an error event."""
        id, owner = orphan.id, orphan.owner
        CURRENT.set(RequestAccount(id=id, tenant=owner.tenant))
        go_on, fail = self._ways[orphan.recipe["kind"]]
        failure: DuoError | None = None
        try:
            begun = partial_answer_of(orphan)
            if begun.closed:
                orphan.log.end()
                return
            await go_on(self._served, orphan, begun)
            logger.info("%s goes on after event %d, which another lead wrote", id, begun.n_events - 1)
        except BusyError:
            self._served.replies.leave(owner.salt, id)
        except DuoError as error:
            failure = error
        except Exception as error:
            failure = problem.defect(f"the reply {id}", error)
        if failure is not None:
            await fail(self._served, orphan, failure)
            orphan.log.end()


async def asked_again(
    served: Served, body: ChatRequest, orphan: Orphan, begun: PartialAnswer
) -> Sequence[Prompted]:
    """Return the prompt of a chat, with the tokens and beginnings that an orphan has."""
    if served.remote is not None:
        await fetch_pictures(served.remote, body)
    prompt = await served.prompt_work.run(prepared_chat, served, body)
    return begun.asked([prompt], orphan.recipe, served.spans)
