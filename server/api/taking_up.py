"""Go on with stored replies whose lead is gone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from server.api import problem
from server.api.answer import Answer, sse
from server.api.begun import Begun, begun_of
from server.api.chat.chat_answer import ChatAnswer
from server.api.chat.chat_request import ChatRequest
from server.api.responses import stored_route
from server.api.responses.request_as_chat import as_chat
from server.api.responses.response_answer import ResponseAnswer, ResponseTurn
from server.api.responses.response_items import ANY_ITEM
from server.api.responses.response_request import ResponseRequest
from server.api.resumed import NamedStream, write_stream
from server.api.stages.prompted import Prompted
from server.api.stages.submit import prepared_chat
from server.api.stages.validate import checked, validated
from server.engine.request_account import CURRENT, RequestAccount
from server.errors import BusyError, DuoError, StoreError
from server.replies.orphans import ORPHAN_LOOK_S
from server.replies.store import Orphan

if TYPE_CHECKING:
    from server.api.served import Served

logger = logging.getLogger("duo.api")


class TakingUp:
    """Looks for orphans as long as the application runs. For the event loop only."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._tasks = set[asyncio.Task[None]]()
        if served.replies.members is not None:
            self._keep(self._look())

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _keep(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look(self) -> None:
        """Take up what slots are free for, or one reply at a time if none is: others may have some."""
        places, replies = self._served.places, self._served.replies
        while not places.closed:
            await asyncio.sleep(ORPHAN_LOOK_S)
            with contextlib.suppress(StoreError):
                for orphan in await replies.take_up(places.n_at_once or min(1, places.n_free)):
                    self._keep(go_on(self._served, orphan))


async def go_on(served: Served, orphan: Orphan) -> None:
    """Begin to write the rest of a reply; if that is impossible, end it by an error event."""
    id, owner = orphan.id, orphan.owner
    CURRENT.set(RequestAccount(id=id, tenant=owner.tenant))
    try:
        begun = begun_of(orphan)
        if begun.closed:
            orphan.log.end()
        elif orphan.recipe["kind"] == "response":
            answer = await _response_again(served, orphan, begun)
            served.background.start(owner, id, answer, orphan.log)
        else:
            stream = NamedStream(id, **orphan.recipe["stream"])
            write_stream(served, await _chat_again(served, orphan, begun), stream, orphan.log)
        logger.info("%s goes on after event %d, which another lead wrote", id, begun.n_events - 1)
    except BusyError:
        served.replies.leave(owner.salt, id)
    except DuoError as error:
        await _fail(served, orphan, error)
    except Exception as error:
        await _fail(served, orphan, problem.defect(f"the reply {id}", error))


async def _response_again(served: Served, orphan: Orphan, begun: Begun) -> Answer:
    recipe = orphan.recipe
    body = validated(ResponseRequest, recipe["body"])
    messages, items = recipe["before"]
    compacted = recipe["compacted"]
    given = [*items, *recipe["new"], *([compacted] if compacted else ())]
    chat = as_chat(body, messages, [ANY_ITEM.validate_python(item) for item in given])
    turn = ResponseTurn(chat, recipe["items"], recipe["new"], (messages, items), compacted)
    asked = checked(served, chat.chat)
    [prompt] = await _asked(served, asked, recipe, begun)
    return ResponseAnswer(served, asked, prompt, body, turn, begun)


async def _chat_again(served: Served, orphan: Orphan, begun: Begun) -> Answer:
    body = checked(served, orphan.recipe["body"])
    return ChatAnswer(served, body, await _asked(served, body, orphan.recipe, begun), begun)


async def _asked(
    served: Served, body: ChatRequest, recipe: dict[str, Any], begun: Begun
) -> Sequence[Prompted]:
    return begun.asked([await served.prompt_work.run(prepared_chat, served, body)], recipe)


async def _fail(served: Served, orphan: Orphan, error: DuoError) -> None:
    """End a reply that cannot go on."""
    if orphan.recipe["kind"] == "response":
        await stored_route.fail(served, orphan.owner, orphan.id, orphan.log, error)
    else:
        orphan.log.append(sse(problem.body(error)))
    orphan.log.end()
