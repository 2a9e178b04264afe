"""POST /v1/responses (OpenAI's Responses API), by way of chat completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from server.api.chat.chat_route import counted, n_tokens
from server.api.chat.summary import with_instruction
from server.api.delivery import Json, deliver, unless_gone
from server.api.renaming import renamed
from server.api.responses.compaction import Compaction, CompactRequest
from server.api.responses.conversations_route import stored_conversation
from server.api.responses.request_as_chat import as_chat
from server.api.responses.response_answer import ResponseAnswer, ResponseTurn
from server.api.responses.response_events import new_id
from server.api.responses.response_items import ANY_ITEM, Item, ReferenceItem, as_stored
from server.api.responses.response_request import ResponseRequest
from server.api.responses.stored_route import streamed
from server.api.services import Services
from server.api.stages.submit import prepared_chat
from server.api.stages.validate import checked, on_prompt_thread, read
from server.errors import FieldError, NotFoundError
from server.replies.kept import StoredResponse


async def create(request: Request, services: Services) -> Response:
    """Answer a request with a response, whole or as a stream."""
    body = await read(request, ResponseRequest)
    turn = await _turn_of(services, body)
    with renamed(turn.chat.names):
        if body.context_management:
            turn = await _shortened_turn(request, services, body, turn)
        chat = checked(services, turn.chat.chat)
        asked = await on_prompt_thread(request, prepared_chat, services, chat)
        answer = ResponseAnswer(services, chat, asked, body, turn)
    if body.background:
        queued = answer.go_on_alone(request.state.given)
        await services.replies.flush()  # other leads must find the id once the client knows it
        return await streamed(services, body.salt, queued) if body.stream else Json(queued)
    return await deliver(request, answer, stream=body.stream)


async def compact(request: Request, services: Services) -> Response:
    """Answer with a shorter conversation: the user's messages, and a summary of everything."""
    body = await read(request, CompactRequest)
    turn = await _turn_of(services, body)
    said = [item for item in turn.input_items if item.get("type") == "message" and item.get("role") == "user"]
    with renamed(turn.chat.names):
        answer = await _compact_turn(request, services, turn, said)
    return await deliver(request, answer, stream=False)


async def _shortened_turn(
    request: Request, services: Services, body: ResponseRequest, turn: ResponseTurn
) -> ResponseTurn:
    """Return the turn. Its conversation is summarised if the prompt has over compact_threshold tokens."""
    most = body.context_management[0].compact_threshold or services.model.n_ctx * 9 // 10
    if await on_prompt_thread(request, n_tokens, services, checked(services, turn.chat.chat)) <= most:
        return turn
    answer = await _compact_turn(request, services, turn)
    try:
        await unless_gone(request, answer.whole())
        item = answer.item
    except BaseException:
        answer.cancel()
        raise
    before = await _before(services, body)
    given = [await _resolved_item(services, body.salt, one, i) for i, one in enumerate(body.items)]
    items = [*before.given, *given, ANY_ITEM.validate_python(item)]
    chat = as_chat(body, before.messages, items, senses=services.senses)
    return replace(turn, chat=chat, compacted=item)


async def _compact_turn(
    request: Request, services: Services, turn: ResponseTurn, said: Sequence[dict[str, Any]] = ()
) -> Compaction:
    chat = checked(services, with_instruction(turn.chat.chat))
    return Compaction(services, chat, await on_prompt_thread(request, prepared_chat, services, chat), said)


async def count(request: Request, services: Services) -> Response:
    """Answer with the number of prompt tokens that a response to this body would have."""
    body = await read(request, ResponseRequest)
    turn = await _turn_of(services, body)
    with renamed(turn.chat.names):
        chat = checked(services, turn.chat.chat, fits=False)
        return counted(await on_prompt_thread(request, n_tokens, services, chat))


async def _turn_of(services: Services, body: ResponseRequest) -> ResponseTurn:
    """Return the request together with the conversation that it continues.

    Raises:
        NotFoundError: The previous response, the conversation or a referenced item does not exist.
        FieldError: An item or a tool cannot be served.
    """
    before = await _before(services, body)
    given = [await _resolved_item(services, body.salt, item, i) for i, item in enumerate(body.items)]
    new = [as_stored(item, new_id) for item in given]
    chat = as_chat(body, before.messages, [*before.given, *given], senses=services.senses)
    of_conversation = before.items if before.given else ()
    return ResponseTurn(chat, [*before.items, *new], new, (before.messages, of_conversation))


@dataclass(frozen=True, slots=True)
class _Before:
    """The conversation that a request continues."""

    messages: Sequence[dict[str, Any]] = ()  # the conversation as chat messages
    given: Sequence[Item] = ()  # alternatively: the conversation as items, not yet converted to messages
    items: Sequence[dict[str, Any]] = ()  # the whole conversation, as OpenAI lists it


async def _before(services: Services, body: ResponseRequest) -> _Before:
    """Return the conversation that a request continues; it is empty if the request names none.

    Raises:
        NotFoundError: The previous response or the conversation does not exist.
        FieldError: The previous response has not ended.
    """
    if body.conversation_id is not None:
        conversation = await stored_conversation(services, body.salt, body.conversation_id)
        items = conversation.input_items
        return _Before((), [ANY_ITEM.validate_python(item) for item in items], items)
    before = await _previous_response(services, body)
    return _Before(before.messages, (), before.items) if before else _Before()


async def _resolved_item(services: Services, salt: str, item: Item, i: int) -> Item:
    """Return the stored item that a reference names; return other items unchanged.

    Raises:
        NotFoundError: There is no such item. The error names item `i` of the input.
    """
    if not isinstance(item, ReferenceItem):
        return item
    stored = await services.replies.item(salt, item.id)
    if stored is None:
        raise NotFoundError(f"Item with id '{item.id}' not found.", param=f"input.{i}.id")
    return ANY_ITEM.validate_python(stored)


async def _previous_response(services: Services, body: ResponseRequest) -> StoredResponse | None:
    """Return the response that previous_response_id names, None without this field.

    Raises:
        NotFoundError: There is no such response.
        FieldError: The response has not ended.
    """
    if (id := body.previous_response_id) is None:
        return None
    stored = await services.replies.get(body.salt, id) if id.startswith("resp_") else None
    if stored is None:
        raise NotFoundError(
            f"Previous response with id '{id}' not found.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    if stored.runs:
        raise FieldError("previous_response_id", f"the response '{id}' has not ended")
    return stored
