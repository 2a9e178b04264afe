"""POST /v1/embeddings."""

from __future__ import annotations

import asyncio
import base64
from typing import Annotated, Any, Literal, TypeAlias

import orjson
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from server.api.body import Body, Count
from server.api.delivery import Json, unless_gone
from server.api.incoming import aside, check_model, read
from server.api.served import Embedding, Served
from server.errors import ContextOverflowError, FieldError, NotSupportedError
from server.llama.embedding import Embedder, Vectors, normalised

MAX_INPUTS = 2048

Ids: TypeAlias = Annotated[list[Count], Field(min_length=1, fail_fast=True)]
Text: TypeAlias = Annotated[str, Field(min_length=1)]


class EmbeddingRequest(Body):
    """Names and meanings are OpenAI's."""

    input: (
        Text
        | Ids
        | Annotated[list[Text], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)]
        | Annotated[list[Ids], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)]
    )
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1, le=1 << 31)] | None = None

    @property
    def inputs(self) -> list[str] | list[list[int]]:
        """One per vector."""
        match self.input:
            case str() as text:
                return [text]
            case [int(), *_]:
                return [self.input]  # pyright: ignore[reportReturnType] - ids of one input
            case _:
                return self.input  # pyright: ignore[reportReturnType] - texts, or ids of several


async def create(request: Request, served: Served) -> Response:
    """One vector of length 1 per input."""
    if served.embedding is None:
        raise NotSupportedError(
            "this server does not embed: start it with --embeddings, or with --embedding-model FILE"
        )
    body = await read(request, EmbeddingRequest)
    _check(served, served.embedding, body)
    embedder = served.embedding.worker.embedder
    ids = await aside(request, _ids, embedder, body)
    vectors = await unless_gone(request, served.embedding.worker.embed(ids))
    return Json(await asyncio.to_thread(_json, served.embedding.card.id, body, ids, vectors))


def _check(served: Served, embedding: Embedding, body: EmbeddingRequest) -> None:
    """Raises NotFoundError for another model, InvalidRequestError for too many dimensions."""
    check_model(body.model, embedding.card, served.model, does="embeds with")
    n_embd = embedding.worker.embedder.n_embd
    if body.dimensions is not None and body.dimensions > n_embd:
        raise FieldError("dimensions", f"this model's vectors have {n_embd}, which is the most")


def _ids(embedder: Embedder, body: EmbeddingRequest) -> list[list[int]]:
    """Raises InvalidRequestError for an input that is too long, or an unknown token id."""
    all_ids: list[list[int]] = []
    for one in body.inputs:
        ids = embedder.tokenize(one) if isinstance(one, str) else one
        if len(ids) > embedder.n_ctx:
            raise ContextOverflowError(len(ids), embedder.n_ctx, param="input")
        if not ids or max(ids) >= embedder.n_vocab:
            raise FieldError("input", f"no tokens, or one that there is not (of {embedder.n_vocab})")
        all_ids.append(ids)
    return all_ids


def _json(id: str, body: EmbeddingRequest, ids: list[list[int]], vectors: Vectors) -> bytes:
    if body.dimensions is not None:
        vectors = normalised(vectors[:, : body.dimensions])
    n_tokens = sum(map(len, ids))
    reply = {
        "object": "list",
        "data": [
            {"object": "embedding", "index": i, "embedding": _encoded(row, body.encoding_format)}
            for i, row in enumerate(vectors)
        ],
        "model": id,
        "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
    }
    return orjson.dumps(reply, option=orjson.OPT_SERIALIZE_NUMPY)


def _encoded(vector: Vectors, form: Literal["float", "base64"]) -> Any:
    """Numbers, or the bytes of little-endian F32 in base64."""
    if form == "float":
        return vector
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
