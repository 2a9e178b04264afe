"""Continue a background response that another lead has begun."""

from __future__ import annotations

from server.api.partial_answer import PartialAnswer
from server.api.responses.request_as_chat import as_chat
from server.api.responses.response_answer import ResponseAnswer, ResponseTurn
from server.api.responses.response_items import ANY_ITEM
from server.api.responses.response_request import ResponseRequest
from server.api.services import Services
from server.api.stages.validate import checked, validated
from server.api.taking_up import asked_again
from server.replies.store import Orphan


async def go_on(services: Services, orphan: Orphan, begun: PartialAnswer) -> None:
    recipe = orphan.recipe
    body = validated(ResponseRequest, recipe["body"])
    messages, items = recipe["before"]
    compacted = recipe["compacted"]
    new = [
        ANY_ITEM.validate_python(item)
        for item in (*items, *recipe["new"], *([compacted] if compacted else ()))
    ]
    chat = as_chat(body, messages, new, senses=services.senses)
    input_items = [*recipe["earlier"], *recipe["new"]]
    turn = ResponseTurn(chat, input_items, recipe["new"], (messages, items), compacted)
    asked = checked(services, chat.chat)
    [prompt] = await asked_again(services, asked, orphan, begun)
    answer = ResponseAnswer(services, asked, prompt, body, turn, begun)
    services.background.start(orphan.owner, orphan.id, answer, orphan.log)
