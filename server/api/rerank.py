"""POST /v1/rerank: rate how well documents answer a query, in Jina's or TEI's format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeAlias

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from server.api.body import Body, Count
from server.api.delivery import Json, unless_gone
from server.api.embeddings import MAX_INPUTS
from server.api.services import Services
from server.api.stages.validate import check_model, on_prompt_thread, read
from server.engine.request_account import tenant
from server.errors import ContextOverflowError, FieldError, NotSupportedError
from server.llama.embedding import Embedder

Documents: TypeAlias = Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)]


class RerankRequest(Body):
    """Body in Jina's or TEI's format.

    documents and return_documents are Jina's names; texts and return_text are TEI's. A TEI answer is a list.
    """

    query: str
    documents: Documents | None = None
    texts: Documents | None = None
    """Another name of documents, for an answer in TEI's form."""
    model: str | None = None
    """The id of the ranking model, a name of the generating model, "default", or absent."""
    top_n: Count | None = None
    """Return at most this number of results."""
    return_documents: bool = False
    """Return each document's text, in Jina's form."""
    return_text: bool = False
    """Return each document's text, in TEI's form."""

    @property
    def ranked(self) -> Sequence[str]:
        return self.documents or self.texts or ()

    def contradiction(self) -> tuple[str, str] | None:
        return None if self.ranked else ("documents", "must be a list of texts, or texts must be one")


async def create(request: Request, services: Services) -> Response:
    """Answer with a score for each document, best first."""
    if services.reranking is None:
        raise NotSupportedError(
            "this server does not rank: start it with --rerank-model FILE, or with --reranking"
        )
    body = await read(request, RerankRequest)
    worker, card = services.reranking.worker, services.reranking.card
    check_model(body.model, card, services.model, does="ranks with")
    ids = await on_prompt_thread(request, _pair_ids, worker.embedder, body)
    scores = await unless_gone(request, worker.embed(ids, tenant()))
    n_tokens = sum(map(len, ids))
    services.traffic.embedded(n_tokens)
    results = list(_best_results(body, scores[:, 0].tolist()))
    if body.texts is not None:
        return Json(results)
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    return Json({"model": card.id, "object": "list", "usage": usage, "results": results})


def _pair_ids(embedder: Embedder, body: RerankRequest) -> list[list[int]]:
    """Return, for each document, the tokens of the query and the document.

    Raises:
        ContextOverflowError: A pair is too long.
        FieldError: The query and a document are both empty.
    """
    all_ids = [embedder.pair(body.query, document) for document in body.ranked]
    if (longest := max(map(len, all_ids))) > embedder.n_ctx:
        raise ContextOverflowError(longest, embedder.n_ctx, param="query")
    if not all(all_ids):
        raise FieldError("query", "must not be empty beside an empty document")
    return all_ids


def _best_results(body: RerankRequest, scores: Sequence[float]) -> Iterator[Mapping[str, Any]]:
    """Yield the results in the request's format, best first; at most top_n, if given."""
    best = sorted(range(len(scores)), key=lambda i: scores[i], reverse=True)[: body.top_n]
    for i in best:
        text = body.ranked[i]
        if body.texts is not None:
            yield {"index": i, "score": scores[i], **({"text": text} if body.return_text else {})}
        else:
            told = {"document": {"text": text}} if body.return_documents else {}
            yield {"index": i, "relevance_score": scores[i], **told}
