"""Read and validate the bodies of requests."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple, cast

import orjson
from pydantic import ValidationError
from starlette.requests import Request

from server.api.access import salt_of
from server.api.body import Body
from server.api.chat.chat_request import ChatRequest
from server.api.delivery import CONVERSATION, unless_gone
from server.api.generation_fields import MAX_SALT, GenerationFields
from server.api.services import ModelCard, Services
from server.api.stages.remote_urls import fetch_pictures
from server.api.validation_errors import invalid
from server.errors import FieldError, InvalidRequestError, NotFoundError, UnsupportedFieldError

B = TypeVar("B", bound=Body)
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

LARGE = 1 << 14
"""Size in bytes above which a body is parsed on a prompt thread; a smaller body takes at most 2 ms."""
MAX_MARKS = 1 << 20
"""Maximum total weight of a body's punctuation (MARKS), to limit the number of values.

Parsing a body of this weight blocks the interpreter for 50 ms if it consists of numbers, for 300 ms if it
consists of keys.
"""
MARKS = {b",": 1, b'"': 2, b"{": 2, b"[": 2}
"""Weights by punctuation mark: commas, quotation marks and opening brackets."""
_ESCAPES = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
"""Matches an escape in JSON. The group `half` matches only an unpaired surrogate."""
REPLACEMENT = "\ufffd"
COUNTED_BYTES = 1 << 20
"""Marks of a body are counted in blocks of this number of bytes."""


IN_SPECULATIVE = frozenset({"exactness", "drafters"})
"""Fields that belong in `speculative`. Elsewhere they are refused: to ignore them would break a guarantee."""


async def on_prompt_thread(request: Request, work: Callable[[*Ts], T], *arguments: *Ts) -> T:
    """Call work(*arguments) on a prompt thread, and return its result.

    First, if an argument is a body that may continue an earlier reply, wait until all ended replies are
    remembered. Then fetch the remote pictures of arguments that are chats, if the server may.

    Raises:
        BusyError: Too many calls wait.
        ClientDisconnect: The client left.
        FieldError: A remote picture cannot be fetched.
    """
    services: Services = request.state.services

    async def done() -> T:
        if any(isinstance(one, GenerationFields) and one.continues for one in arguments):
            await services.history.remembered()
        if services.remote is not None:
            for one in arguments:
                if isinstance(one, ChatRequest):
                    await fetch_pictures(services.remote, one)
        return await services.prompt_work.run(work, *arguments)

    return await unless_gone(request, done())


async def from_body(request: Request, make: Callable[[bytes], T]) -> T:
    """Read a request's body, call make(body), and return its result. Errors of make() are raised too.

    If the body is large (LARGE), the number of its values is limited (MAX_MARKS), and make() is called on a
    prompt thread.

    Raises:
        InvalidRequestError: The body is large and has too many values.
        BusyError: The body is large, and too many calls wait for a prompt thread.
        ClientDisconnect: The client left.
    """
    data = await request.body()
    if len(data) <= LARGE:
        return make(data)
    n_marks = 0
    for at in range(0, len(data), COUNTED_BYTES):
        n_marks += sum(data.count(mark, at, at + COUNTED_BYTES) * weight for mark, weight in MARKS.items())
        if n_marks > MAX_MARKS:
            raise InvalidRequestError(
                f"the body has too many values: send fewer than {MAX_MARKS} in one request", status=413
            )
    return await on_prompt_thread(request, make, data)


async def read(request: Request, form: type[B]) -> B:
    """Return the body of a request, validated as a `form`.

    Raises:
        InvalidRequestError: The body or one of its fields is invalid.
    """
    return await from_body(request, lambda data: validated(form, salted(request, parsed(data))))


def parsed(body: bytes) -> dict[str, Any]:
    """Return the body as a JSON object, with U+FFFD for unpaired surrogates.

    A client that cuts a text within an emoji sends half a surrogate pair in every later turn.

    Raises:
        InvalidRequestError: The body is not a JSON object.
    """
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        try:
            data = orjson.loads(whole_characters(body))
        except orjson.JSONDecodeError:
            raise InvalidRequestError(f"the body is not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise InvalidRequestError("the body must be a JSON object")
    return cast(dict[str, Any], data)


def whole_characters(body: bytes) -> str:
    """Return a JSON text with U+FFFD in place of each unpaired surrogate, whether escaped or in UTF-8."""
    return _ESCAPES.sub(
        lambda found: REPLACEMENT if found["half"] else found[0], body.decode(errors="replace")
    )


def salted(request: Request, data: dict[str, Any]) -> dict[str, Any]:
    """Return the body `data` with its cache_salt replaced by the caller's salt (access.py).

    A body with an invalid cache_salt is returned unchanged; validated() refuses it. If another process may
    continue the reply, the result is also stored as request.state.given.
    """
    given = data.get("cache_salt")
    if given is not None and not (isinstance(given, str) and len(given) <= MAX_SALT):
        return data
    salt = salt_of(request, given)
    data = {**data, "cache_salt": salt} if salt else data
    if data.get("background") or CONVERSATION in request.headers:
        request.state.given = data  # another process may continue the reply
    return data


def validated(form: type[B], data: dict[str, Any]) -> B:
    """Return `data` as a validated body of the class `form`.

    Raises:
        InvalidRequestError: A field is invalid, unsupported, or contradicts another; the error names it.
    """
    try:
        body = form.model_validate(data)
    except ValidationError as error:
        raise invalid(error, data) from error
    if "speculative" in form.model_fields and (misplaced := IN_SPECULATIVE & data.keys()):
        raise FieldError(min(misplaced), "belongs in the object `speculative`")
    for name, neutral in form.unsupported.items():
        if data.get(name) is not None and data[name] not in neutral:
            raise UnsupportedFieldError(name)
    if (found := body.contradiction()) is not None:
        raise FieldError(*found)
    return body


def check_model(name: str | None, *cards: ModelCard, does: str = "has") -> None:
    """Raise NotFoundError if no model has this name. The names None and "" mean the first model.

    Args:
        name: The name in the request.
        cards: The server's models.
        does: Verb of the error message between "this server" and the first model's id.
    """
    if name and not any(card.is_called(name) for card in cards):
        raise NotFoundError(
            f"The model `{name}` does not exist: this server {does} `{cards[0].id}`",
            param="model",
            code="model_not_found",
        )


def checked(services: Services, data: dict[str, Any], *, fits: bool = True) -> ChatRequest:
    """Return the validated body of a chat completion.

    Args:
        services: What the server offers.
        data: The body.
        fits: True: before validating, refuse more messages than the context has tokens, since each message
            takes at least one token.

    Raises:
        InvalidRequestError: A field is not valid.
        NotFoundError: There is no such model.
        ContextOverflowError: There are too many messages.
    """
    if fits and isinstance(messages := data.get("messages"), list):
        services.room.check_tokens(len(cast(list[Any], messages)), estimated=True)
    body = validated(ChatRequest, data)
    if (found := body.first_unreadable(services.senses)) is not None:
        raise FieldError(*found)
    check_model(body.model, services.model)
    return body
