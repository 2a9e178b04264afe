"""POST /infill, as in llama-server: generate the text between two texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from server.api.body import Body
from server.api.delivery import deliver
from server.api.native.native_answer import NativeAnswer
from server.api.native.native_request import NativeRequest
from server.api.services import Services
from server.api.stages.prompted import Prompted
from server.api.stages.submit import prepared
from server.api.stages.tokenize import NO_MIDDLE, around
from server.api.stages.validate import check_model, on_prompt_thread, read
from server.errors import FieldError, NotSupportedError
from server.llama.backend import FillInMiddle, Vocabulary

MAX_EXTRA = 1024
"""Maximum texts of input_extra."""
REPOSITORY = "myproject\n"
"""Repository name in every prompt, as in llama-server, with the line break after it."""
FOR_REPLY = 4
"""A reply without max_tokens gets 1/FOR_REPLY of the context; input_extra may fill the rest.

At 8, long replies end early. At 2, fewer extra texts fit.
"""


class ExtraText(Body):
    """A text that the model reads before prefix and suffix, such as a part of another file."""

    filename: str = "tmp"
    text: str


class InfillRequest(NativeRequest):
    """Body of /infill: the fields of a NativeRequest; `prompt` is appended to input_prefix."""

    input_prefix: str
    """The text before the generated text."""
    input_suffix: str
    """The text after the generated text."""
    input_extra: Annotated[list[ExtraText], Field(max_length=MAX_EXTRA, fail_fast=True)] = Field(
        default_factory=list[ExtraText]
    )
    """Texts that the model reads before prefix and suffix. If they are too long, it reads only their end."""

    def contradiction(self) -> tuple[str, str] | None:
        if not isinstance(self.prompt, str):
            return "prompt", "must be a text"
        if self.suffix:
            return "suffix", "is called input_suffix here"
        return super().contradiction()


async def create(request: Request, services: Services) -> Response:
    """Answer with a text that fits between a prefix and a suffix."""
    fim = services.vocabulary.fim
    if fim is None:
        raise NotSupportedError(NO_MIDDLE)
    body = await read(request, InfillRequest)
    check_model(body.model, services.model)
    asked = await on_prompt_thread(request, _infill_prompt, services, body, fim)
    return await deliver(request, NativeAnswer(services, body, [asked]), stream=body.stream)


def _infill_prompt(services: Services, body: InfillRequest, fim: FillInMiddle) -> Prompted:
    """Return the prompt, ready to be submitted. Of the extra texts, the last tokens that fit are kept.

    Slow: not for the event loop.

    Raises:
        InvalidRequestError: The texts are too long, or a field cannot be honoured.
    """
    vocabulary, n_ctx = services.vocabulary, services.model.n_ctx
    given = body.input_prefix, str(body.prompt), body.input_suffix
    services.room.check_bytes(sum(len(text.encode()) for text in given), "input_prefix")
    if sum(len(one.text) for one in body.input_extra) > n_ctx * services.room.longest * FOR_REPLY:
        raise FieldError("input_extra", "has much more text than the context has room for")
    before = [id for text in given[:2] for id in vocabulary.tokenize(text, special=False)]
    tokens = around(vocabulary, fim, before, body.input_suffix)
    services.room.check_tokens(len(tokens), "input_prefix")
    left = n_ctx - len(tokens) - (body.max_new_tokens or n_ctx // FOR_REPLY)
    if extra := list(_extra_tokens(vocabulary, fim, body.input_extra))[-left:] if left > 0 else []:
        tokens = around(vocabulary, fim, before, body.input_suffix, extra)
    return prepared(services, body, Prompted("", tokens, whole=False))


def _extra_tokens(vocabulary: Vocabulary, fim: FillInMiddle, texts: Sequence[ExtraText]) -> Iterator[int]:
    """Yield the tokens of extra texts.

    If the model has control tokens for repositories and files, yield the repository's name and the name of
    each text's file too, and at the end a header for the file to fill in.
    """
    known = fim.repository is not None and fim.file is not None
    if known and texts:
        yield from (fim.repository or 0, *vocabulary.tokenize(REPOSITORY, special=False))
    for one in texts:
        if known:
            yield from (fim.file or 0, *vocabulary.tokenize(f"{one.filename}\n", special=False))
        yield from vocabulary.tokenize(one.text, special=False)
    if known and texts:
        yield from (fim.file or 0, *vocabulary.tokenize("filename\n", special=False))
