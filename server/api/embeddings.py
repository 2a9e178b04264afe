"""POST /v1/embeddings in OpenAI's form, and /embedding in llama-server's."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

import orjson
from pydantic import Field, WithJsonSchema, field_validator
from starlette.requests import Request
from starlette.responses import Response

from server.api.body import Body, Neutral
from server.api.delivery import Json, unless_gone
from server.api.pieces import Pieces, apart, are_pieces, inputs_schema, unwrapped
from server.api.services import Embedding, Services
from server.api.stages.validate import check_model, on_prompt_thread, read
from server.engine.request_account import tenant
from server.errors import ContextOverflowError, FieldError, NotSupportedError
from server.llama.embedding import Embedder, Vectors, normalised

MAX_INPUTS = 2048


class EmbeddingRequest(Body):
    """Body with OpenAI's names and meanings; `content` is llama-server's name of `input`."""

    input: Annotated[str | list[Any], WithJsonSchema(inputs_schema(MAX_INPUTS))] | None = None
    """A text, token ids, both mixed in one list, or a list of at most 2048 such inputs, as in the prompt of
    a CompletionRequest. A text may also be given as the prompt_string of an object, or as text parts in its
    `content`."""
    content: Annotated[str | list[Any], WithJsonSchema(inputs_schema(MAX_INPUTS))] | None = None
    """llama-server's name of input, for an answer in its form."""
    model: str | None = None
    """The id of the embedding model, a name of the generating model, "default", or absent."""
    encoding_format: Literal["float", "base64"] = "float"
    """base64: encode each vector's little-endian 32-bit floats."""
    dimensions: Annotated[int, Field(ge=1, le=1 << 31)] | None = None
    """Number of components to keep of each vector, from the first on. It is scaled to length 1 again."""

    unsupported: ClassVar[Neutral] = {"embd_normalize": (2,)}

    @field_validator("input", "content", mode="before")
    @classmethod
    def _objects_with_texts_are_texts(cls, given: Any) -> Any:
        return unwrapped(given)

    @field_validator("input", "content")
    @classmethod
    def _inputs_are_texts_or_ids(cls, given: str | list[Any] | None) -> str | list[Any] | None:
        inputs = apart(given or [])
        if not inputs or not all(are_pieces(one) for one in inputs):
            raise ValueError("must be a text, a list of token ids, or a list of such inputs")
        if len(inputs) > MAX_INPUTS:
            raise ValueError(f"at most {MAX_INPUTS} inputs at once")
        return given

    @property
    def inputs(self) -> list[Pieces]:
        """Return the inputs; each gets one vector."""
        return apart(self.input if self.input is not None else self.content or [])

    def contradiction(self) -> tuple[str, str] | None:
        if self.input is not None and self.content is not None:
            return "content", "is another name of input: give one of them"
        return None if self.inputs else ("input", "required")


async def create(request: Request, services: Services) -> Response:
    """Answer with one vector of length 1 per input."""
    return await _embed_inputs(request, services, _openai_json)


async def create_native(request: Request, services: Services) -> Response:
    """Answer with embeddings in llama-server's form."""
    return await _embed_inputs(request, services, _native_json)


async def _embed_inputs(request: Request, services: Services, to_json: Callable[..., bytes]) -> Response:
    if services.embedding is None:
        raise NotSupportedError(
            "this server does not embed: start it with --embedding-model FILE, or without --no-embeddings"
        )
    body = await read(request, EmbeddingRequest)
    _check_request(services, services.embedding, body)
    embedder = services.embedding.worker.embedder
    ids = await on_prompt_thread(request, _input_ids, embedder, body)
    vectors = await unless_gone(request, services.embedding.worker.embed(ids, tenant()))
    services.traffic.embedded(sum(map(len, ids)))
    to_json = to_json if body.input is not None else _native_json
    return Json(await asyncio.to_thread(to_json, services.embedding.card.id, body, ids, vectors))


def _check_request(services: Services, embedding: Embedding, body: EmbeddingRequest) -> None:
    """Raise NotFoundError if another model is named, InvalidRequestError for too many dimensions."""
    check_model(body.model, embedding.card, services.model, does="embeds with")
    n_embd = embedding.worker.embedder.n_embd
    if body.dimensions is not None and body.dimensions > n_embd:
        raise FieldError("dimensions", f"must be at most {n_embd}: this model's vectors have no more")


def _input_ids(embedder: Embedder, body: EmbeddingRequest) -> list[list[int]]:
    """Return the token ids of each input.

    Raises:
        InvalidRequestError: An input is empty or too long, or has an id that the vocabulary lacks.
    """
    all_ids: list[list[int]] = []
    for pieces in body.inputs:
        ids = _input_tokens(embedder, pieces)
        if len(ids) > embedder.n_ctx:
            raise ContextOverflowError(len(ids), embedder.n_ctx, param="input")
        if not ids or not 0 <= min(ids) <= max(ids) < embedder.n_vocab:
            raise FieldError(
                "input", f"must have tokens, with ids below {embedder.n_vocab}, the size of the vocabulary"
            )
        all_ids.append(ids)
    return all_ids


def _input_tokens(embedder: Embedder, pieces: Pieces) -> list[int]:
    """Return the tokens of an input. If it begins with text, special tokens such as BOS are added."""
    whole = len(pieces) == 1 or isinstance(pieces[0], str)
    ids: list[int] = []
    for i, piece in enumerate(pieces):
        if isinstance(piece, int):
            ids.append(piece)
        else:
            ids += embedder.tokenize(piece, framed=whole and i == 0)
    return ids


def _native_json(id: str, body: EmbeddingRequest, ids: list[list[int]], vectors: Vectors) -> bytes:
    """Return llama-server's format: for each input a list that contains one vector."""
    reply = [{"index": i, "embedding": [row]} for i, row in enumerate(_cut_dimensions(vectors, body))]
    return orjson.dumps(reply, option=orjson.OPT_SERIALIZE_NUMPY)


def _cut_dimensions(vectors: Vectors, body: EmbeddingRequest) -> Vectors:
    return vectors if body.dimensions is None else normalised(vectors[:, : body.dimensions])


def _openai_json(id: str, body: EmbeddingRequest, ids: list[list[int]], vectors: Vectors) -> bytes:
    n_tokens = sum(map(len, ids))
    reply = {
        "object": "list",
        "data": [
            {"object": "embedding", "index": i, "embedding": _encode_vector(row, body.encoding_format)}
            for i, row in enumerate(_cut_dimensions(vectors, body))
        ],
        "model": id,
        "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
    }
    return orjson.dumps(reply, option=orjson.OPT_SERIALIZE_NUMPY)


def _encode_vector(vector: Vectors, form: Literal["float", "base64"]) -> Any:
    """Return a vector as numbers, or as little-endian F32 in base64."""
    if form == "float":
        return vector
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
