"""Shapes of responses that contain embeddings, ranks, tokens or prompts."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypeAliasType, TypedDict

from server.api.contract.quantities import Byte, Natural, Positive


class EmbeddingVector(TypedDict):
    object: Literal["embedding"]
    index: Natural
    embedding: (
        Annotated[list[float], Field(min_length=1)]
        | Annotated[str, Field(json_schema_extra={"contentEncoding": "base64"})]
    )


class EmbeddingUsage(TypedDict):
    prompt_tokens: Positive
    total_tokens: Positive


class EmbeddingList(TypedDict):
    object: Literal["list"]
    data: Annotated[list[EmbeddingVector], Field(min_length=1)]
    model: str
    usage: EmbeddingUsage


class NativeEmbedding(TypedDict):
    index: Natural
    embedding: Annotated[list[Annotated[list[float], Field(min_length=1)]], Field(min_length=1)]


NativeEmbeddings = TypeAliasType("NativeEmbeddings", Annotated[list[NativeEmbedding], Field(min_length=1)])


class RankingUsage(TypedDict):
    prompt_tokens: Positive
    total_tokens: Positive


class RankedDocument(TypedDict):
    text: str


class RankedResult(TypedDict):
    index: Natural
    relevance_score: float
    document: NotRequired[RankedDocument]


class RankedList(TypedDict):
    object: Literal["list"]
    model: str
    usage: RankingUsage
    results: list[RankedResult]


class RankedText(TypedDict):
    index: Natural
    score: float
    text: NotRequired[str]


Reranked = TypeAliasType("Reranked", RankedList | list[RankedText])


class TokenPiece(TypedDict):
    id: Natural
    piece: str | list[Byte]
    """The token's text, or its bytes if these are not valid text by themselves."""


class Tokenized(TypedDict):
    tokens: list[Natural] | Annotated[list[TokenPiece], Field(min_length=1)]


class Detokenized(TypedDict):
    content: str


class AppliedTemplate(TypedDict):
    prompt: str
