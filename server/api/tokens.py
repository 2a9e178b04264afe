"""POST /tokenize, /detokenize and /apply-template, as in llama-server."""

from __future__ import annotations

from typing import Annotated, Any

import orjson
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from server.api.body import Body, Count
from server.api.chat.chat_route import parse
from server.api.delivery import Json
from server.api.history import after_bos
from server.api.services import Services
from server.api.stages.render import rendered
from server.api.stages.validate import on_prompt_thread, read
from server.errors import FieldError
from server.llama.backend import Vocabulary
from server.text.detokenize import spelled
from server.text.guard import unguarded


class TokenizeRequest(Body):
    """Body of /tokenize."""

    content: str | Annotated[list[str | Count], Field(fail_fast=True)]
    """A text, or a list of texts and token ids."""
    add_special: bool = False
    """Put a BOS in front if the model wants one."""
    parse_special: bool = True
    """Read a text that spells a control token as that token."""
    with_pieces: bool = False
    """Return the text of each token."""


class DetokenizeRequest(Body):
    tokens: Annotated[list[Count], Field(fail_fast=True)]


async def tokenize(request: Request, services: Services) -> Response:
    body = await read(request, TokenizeRequest)
    return Json(await on_prompt_thread(request, _tokens_json, services.vocabulary, body))


async def detokenize(request: Request, services: Services) -> Response:
    body = await read(request, DetokenizeRequest)
    return Json(await on_prompt_thread(request, _text_json, services.vocabulary, body))


async def apply_template(request: Request, services: Services) -> Response:
    """Answer with the prompt that a chat completion with this body would have."""
    prompt = await on_prompt_thread(request, rendered, services, await parse(request, services))
    return Json({"prompt": unguarded(prompt.text)})


def _tokens_json(vocabulary: Vocabulary, body: TokenizeRequest) -> bytes:
    tokens = after_bos(vocabulary, []) if body.add_special else []
    for part in [body.content] if isinstance(body.content, str) else body.content:
        if isinstance(part, int):
            _check_token(vocabulary, part, "content")
            tokens.append(part)
        else:
            tokens += vocabulary.tokenize(part, special=body.parse_special)
    if not body.with_pieces:
        return orjson.dumps({"tokens": tokens})
    return orjson.dumps(
        {"tokens": [{"id": token, "piece": _piece_json(vocabulary, token)} for token in tokens]}
    )


def _piece_json(vocabulary: Vocabulary, token: int) -> Any:
    """Return a token's text, or a list of its bytes if they are not valid UTF-8."""
    data = vocabulary.piece(token, special=True)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


def _text_json(vocabulary: Vocabulary, body: DetokenizeRequest) -> bytes:
    for token in body.tokens:
        _check_token(vocabulary, token, "tokens")
    return orjson.dumps({"content": spelled(vocabulary, body.tokens)})


def _check_token(vocabulary: Vocabulary, token: int, param: str) -> None:
    if token >= vocabulary.size:
        raise FieldError(param, f"there is no token {token}: the vocabulary has {vocabulary.size}")
