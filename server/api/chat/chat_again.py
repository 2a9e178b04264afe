"""Continue a stream of chat completions that another lead has begun."""

from __future__ import annotations

from server.api import problem
from server.api.answer import sse
from server.api.chat.chat_answer import ChatAnswer
from server.api.partial_answer import PartialAnswer
from server.api.resumed import NamedStream, write_stream
from server.api.services import Services
from server.api.stages.validate import checked
from server.api.taking_up import asked_again
from server.errors import DuoError
from server.replies.store import Orphan


async def go_on(services: Services, orphan: Orphan, begun: PartialAnswer) -> None:
    body = checked(services, orphan.recipe["body"])
    answer = ChatAnswer(services, body, await asked_again(services, body, orphan, begun), begun)
    write_stream(services, answer, NamedStream(orphan.id, **orphan.recipe["stream"]), orphan.log)


async def store_failure(services: Services, orphan: Orphan, error: DuoError) -> None:
    orphan.log.append(sse(problem.body(error)))
