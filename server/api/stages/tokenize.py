"""Tokenise prompts: chats that a template has rendered, and texts and tokens of completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from server.api.chat.chat_request import ChatRequest
from server.api.completions.completion_request import CompletionRequest
from server.api.history import after_bos
from server.api.pieces import Pieces, joined_ids
from server.api.services import Services
from server.api.stages.picture_words import check_end
from server.api.stages.prompted import Prompted
from server.errors import FieldError, UnsupportedFieldError
from server.llama.backend import FillInMiddle, Vocabulary

NO_MIDDLE = "this model was not trained to fill in the middle of a text"


def tokenized(services: Services, body: ChatRequest, prompt: Prompted) -> Prompted:
    """Return the prompt of a rendered chat with its tokens added.

    Raises:
        ContextOverflowError: The prompt is too long.
        FieldError: The prompt ends with a picture or sound.
    """
    tokens = services.history.rendered(prompt.text, body.salt)
    check_end(tokens)
    return replace(prompt, tokens=tokens)


def tokenized_texts(services: Services, body: CompletionRequest) -> list[Prompted]:
    """Return a completion's prompts with their tokens, in order.

    Raises:
        InvalidRequestError: A prompt is empty, too long, or has unknown token ids; or there is a suffix, but
            the model cannot fill in the middle.
    """
    found: list[Prompted] = []
    for pieces in body.prompts:
        texts = [piece for piece in (*pieces, body.suffix) if isinstance(piece, str)]
        services.room.check_bytes(sum(len(text.encode()) for text in texts), "prompt")
        tokens = _prompt_tokens(services, body, pieces)
        if not tokens:
            raise FieldError(
                "prompt", "is empty, and this model has no token that begins a text: send at least one token"
            )
        services.room.check_tokens(len(tokens), "prompt")
        whole = not body.suffix and isinstance(pieces[0], str) and len(pieces) == 1
        text = _echoed_text(pieces, services.vocabulary)
        found.append(Prompted(text, tokens, whole=whole))
    return found


def _prompt_tokens(services: Services, body: CompletionRequest, pieces: Pieces) -> list[int]:
    """Return the tokens of one prompt; with a suffix, those of a prompt to fill in the middle.

    A prompt that begins with a text gets a leading BOS if the model wants it. The prompt "" is BOS alone, or
    no token if the vocabulary has no BOS.
    """
    vocabulary = services.vocabulary
    if body.suffix:
        if vocabulary.fim is None:
            raise UnsupportedFieldError("suffix", NO_MIDDLE)
        before = joined_ids(vocabulary, pieces, "prompt", special=False)
        return around(vocabulary, vocabulary.fim, before, body.suffix)
    if pieces == [""]:
        return [] if vocabulary.bos is None else [vocabulary.bos]
    if len(pieces) == 1 and isinstance(pieces[0], str):
        return services.history.tokens_of(pieces[0], body.salt, "prompt")
    tokens = joined_ids(vocabulary, pieces, "prompt", special=True)
    return after_bos(vocabulary, tokens) if isinstance(pieces[0], str) else tokens


def around(
    vocabulary: Vocabulary, fim: FillInMiddle, before: Sequence[int], suffix: str, extra: Sequence[int] = ()
) -> list[int]:
    """Return the tokens of a prompt to fill in the middle, in llama-server's order: prefix, suffix, middle.

    Args:
        vocabulary: Vocabulary of the tokens.
        fim: The model's control tokens for prefix, suffix and middle.
        before: Tokens of the prefix.
        suffix: The text after the middle.
        extra: Tokens that come before everything else.
    """
    after = vocabulary.tokenize(suffix, special=False)
    return after_bos(vocabulary, [*extra, fim.prefix, *before, fim.suffix, *after, fim.middle])


def _echoed_text(pieces: Pieces, vocabulary: Vocabulary) -> str:
    """Return the text of a prompt of texts and token ids, with control tokens written out, for `echo`."""
    spelled = b"".join(
        piece.encode() if isinstance(piece, str) else vocabulary.piece(piece, special=True)
        for piece in pieces
    )
    return spelled.decode(errors="replace")
