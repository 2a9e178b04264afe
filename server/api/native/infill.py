"""POST /infill, llama-server's: what stands between two texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from server.api.body import Body
from server.api.completions.prompts import NO_MIDDLE, around
from server.api.delivery import deliver
from server.api.engine_requests import Prompted, requests_for
from server.api.incoming import aside, check_model, read
from server.api.native.native_answer import NativeAnswer
from server.api.native.native_request import NativeRequest
from server.api.served import Served
from server.errors import FieldError, NotSupportedError
from server.llama.backend import FillInMiddle, Vocabulary

MAX_EXTRA = 1024
"""Texts of input_extra."""
REPOSITORY = "myproject\n"
"""llama-server's name for every repository."""
FOR_REPLY = 4
"""One part in so many of the context is kept for a reply whose length is not limited: with half as much long
replies end early, with twice as much fewer texts are seen."""


class ExtraText(Body):
    """Part of another file."""

    filename: str = "tmp"
    text: str


class InfillRequest(NativeRequest):
    """Fields are those of a completion in llama-server's form. input_extra: texts that the model sees before
    the two; prompt: more of the first."""

    input_prefix: str
    """What stands before."""
    input_suffix: str
    """What stands after."""
    input_extra: Annotated[list[ExtraText], Field(max_length=MAX_EXTRA, fail_fast=True)] = Field(
        default_factory=list[ExtraText]
    )
    """Seen before both; as much of the end as there is room for."""

    def contradiction(self) -> tuple[str, str] | None:
        if not isinstance(self.prompt, str):
            return "prompt", "must be a text"
        if self.suffix:
            return "suffix", "is called input_suffix here"
        return super().contradiction()


async def create(request: Request, served: Served) -> Response:
    fim = served.vocabulary.fim
    if fim is None:
        raise NotSupportedError(NO_MIDDLE)
    body = await read(request, InfillRequest)
    check_model(body.model, served.model)
    asked = await aside(request, _prompted, served, body, fim)
    return await deliver(request, NativeAnswer(served, body, [asked]), stream=body.stream)


def _prompted(served: Served, body: InfillRequest, fim: FillInMiddle) -> Prompted:
    """As much of the end of the extra texts as there is room for. Raises InvalidRequestError."""
    vocabulary, n_ctx = served.vocabulary, served.model.n_ctx
    given = body.input_prefix, str(body.prompt), body.input_suffix
    served.room.check_bytes(sum(len(text.encode()) for text in given), "input_prefix")
    if sum(len(one.text) for one in body.input_extra) > n_ctx * served.room.longest * FOR_REPLY:
        raise FieldError("input_extra", "has much more text than the context has room for")
    before = [id for text in given[:2] for id in vocabulary.tokenize(text, special=False)]
    tokens = around(vocabulary, fim, before, body.input_suffix)
    served.room.check_tokens(len(tokens), "input_prefix")
    left = n_ctx - len(tokens) - (body.max_new_tokens or n_ctx // FOR_REPLY)
    if extra := list(_extra(vocabulary, fim, body.input_extra))[-left:] if left > 0 else []:
        tokens = around(vocabulary, fim, before, body.input_suffix, extra)
    return Prompted("", requests_for(served, body, tokens), whole=False)


def _extra(vocabulary: Vocabulary, fim: FillInMiddle, texts: Sequence[ExtraText]) -> Iterator[int]:
    """Of models that know no files the texts only."""
    known = fim.repository is not None and fim.file is not None
    if known and texts:
        yield from (fim.repository or 0, *vocabulary.tokenize(REPOSITORY, special=False))
    for one in texts:
        if known:
            yield from (fim.file or 0, *vocabulary.tokenize(f"{one.filename}\n", special=False))
        yield from vocabulary.tokenize(one.text, special=False)
    if known and texts:
        yield from (fim.file or 0, *vocabulary.tokenize("filename\n", special=False))
