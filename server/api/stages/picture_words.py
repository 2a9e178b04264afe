"""Replace a chat's pictures and sounds by placeholder words.

A word stands for one picture or sound. Tokenising replaces it by the ids of the picture's positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from server.api.body import OtherPart
from server.api.chat.chat_request import AnyPart, ChatRequest
from server.api.services import Services
from server.errors import FieldError, InvalidRequestError
from server.llama.backend import PICTURE_IDS
from server.pictures.picture import Picture
from server.pictures.pixels import picture_place, pixels_of
from server.pictures.registry import Pictures
from server.pictures.sounds import sound_file, sound_place


def shown_messages(services: Services, body: ChatRequest) -> tuple[list[dict[str, Any]], list[Picture]]:
    """Return the messages with placeholder words, and the pictures and sounds of these words, in order.

    Encoding a picture is slow, so the number of tokens is checked before each picture is encoded.

    Raises:
        InvalidRequestError: A picture or sound cannot be read.
        ContextOverflowError: The pictures take more tokens than the context has.
    """
    pictures = list[Picture]()
    if (known := services.pictures) is None:
        return [message.for_template() for message in body.messages], pictures
    n_taken = 0

    def check(n: int) -> None:
        services.room.check_tokens(n_taken + n, estimated=True)

    messages = list[dict[str, Any]]()
    for at, message in enumerate(body.messages):

        def text_of(i: int, part: AnyPart, at: int = at) -> str:
            nonlocal n_taken
            if not (isinstance(part, OtherPart) and services.senses.reads(part.type)):
                return part.text
            services.prompt_work.expect_long()
            pictures.append(_read(known, part, at, i, check))
            n_taken += len(pictures[-1].ids)
            return pictures[-1].word

        messages.append(message.for_template(text_of))
    return messages, pictures


def _read(known: Pictures, part: OtherPart, message: int, i: int, check: Callable[[int], None]) -> Picture:
    """Return the encoded picture or sound of a part.

    Args:
        known: The known pictures, which the result joins.
        part: A part that the model reads.
        message: Index of the message, for errors.
        i: Index of the part in the message, for errors.
        check: Called with the number of tokens before they are encoded; it may raise.
    """
    if part.is_sound:
        return known.of_sound(sound_file(part.input_audio, sound_place(message, i)), check)
    return known.of(pixels_of(part.url, picture_place(message, i)), check)


def check_shown(text: str, pictures: Sequence[Picture]) -> None:
    """Raise InvalidRequestError if the rendered prompt `text` lacks the word of a picture or sound."""
    words = [picture.word for picture in pictures]
    if any(text.count(word) < words.count(word) for word in set(words)):
        raise InvalidRequestError(
            "the model's chat template does not show a picture or sound", param="messages"
        )


def check_end(tokens: Sequence[int]) -> None:
    """Raise FieldError if a picture ends the prompt: only a token after it has logits for the reply."""
    if tokens and tokens[-1] >= PICTURE_IDS:
        raise FieldError("messages", "the prompt ends with a picture or sound: send a text behind it")
