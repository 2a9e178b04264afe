"""POST /v1/messages and /v1/messages/count_tokens (Anthropic's Messages API), by way of chat completions."""

from __future__ import annotations

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response

from server.api.delivery import Json, deliver
from server.api.messages.edited_turn import TurnEditor
from server.api.messages.messages_answer import MessagesAnswer
from server.api.messages.messages_as_chat import Before, as_chat
from server.api.messages.messages_request import MessagesRequest
from server.api.messages.messages_tools import AnyTool
from server.api.renaming import renamed
from server.api.services import Services
from server.api.stages.submit import prepared_chat
from server.api.stages.validate import checked, on_prompt_thread, read
from server.errors import NotFoundError

KEPT_TOOLS: TypeAdapter[list[AnyTool]] = TypeAdapter(list[AnyTool])


async def create(request: Request, services: Services) -> Response:
    """Answer a request with a message, whole or as a stream."""
    body = await read(request, MessagesRequest)
    turn = as_chat(body, await _earlier_conversation(services, body), senses=services.senses)
    with renamed(turn.names):
        turn = await TurnEditor(request, services, turn).edit(body)
        chat = checked(services, turn.chat)
        asked = await on_prompt_thread(request, prepared_chat, services, chat)
        answer = MessagesAnswer(services, chat, asked, body, turn)
    return await deliver(request, answer, stream=body.stream)


async def count_tokens(request: Request, services: Services) -> Response:
    """Answer with the number of prompt tokens that a message request with this body would have."""
    body = await read(request, MessagesRequest)
    turn = as_chat(body, await _earlier_conversation(services, body), senses=services.senses)
    with renamed(turn.names):
        editor = TurnEditor(request, services, turn)
        n = n_before = await editor.n_tokens()
        if body.context_management is not None:
            await editor.edit(body, compacts=False)
            n = await editor.n_tokens()
    counted = {"context_management": {"original_input_tokens": n_before}} if body.context_management else {}
    return Json({"input_tokens": n, **counted})


async def _earlier_conversation(services: Services, body: MessagesRequest) -> Before | None:
    """Return the stored conversation that a request continues, None if it continues none.

    Raises:
        NotFoundError: The server does not have the conversation (any more).
    """
    if body.thread is None or (id := body.thread.previous_message_id) is None:
        return None
    stored = await services.replies.get(body.salt, id)
    if stored is None or not id.startswith("msg_"):
        raise NotFoundError(
            f"thread.previous_message_id: the message '{id}' is not kept here: send the whole conversation",
            param="thread.previous_message_id",
        )
    tools = KEPT_TOOLS.validate_python(stored.response["tools"])
    return Before(stored.messages, stored.response["system"], tools)
