"""Find how much of a text belongs to a given message. Pure."""

from __future__ import annotations

import json

from server.formats.reading import MessageReader
from server.text.guard import GUARD
from server.text.message import Arguments, CallStart, Content, Message, Piece, folded
from server.text.reply_format import ReplyFormat


def extent(text: str, form: ReplyFormat, message: Message) -> int | None:
    """Return the length of the shortest prefix of `text` that reads as `message`, None if there is none.

    Calls, thoughts and content must be equal, except for white space around them. `text` has guards
    (guard.py), which do not count towards the length. `form` says how to read it.
    """
    reader, pieces = MessageReader(form), list[Piece]()
    content = message.content.lstrip()
    n_content = n_calls = n_read = 0
    for character in text:
        n_read += character != GUARD
        new = reader.feed(character)
        more = "".join(piece.text for piece in new if isinstance(piece, Content))
        n_content += len(more if n_content else more.lstrip())
        n_calls += sum(isinstance(piece, CallStart) for piece in new)
        if n_content > len(content) or n_calls > len(message.calls):
            return None
        pieces += new
        if new and n_calls == len(message.calls) and n_content >= len(content.rstrip()):
            called = isinstance(new[-1], Arguments) and new[-1].text.endswith("}")
            if (called or not n_calls) and _meaning_of(folded(pieces)) == _meaning_of(message):
                return n_read
    return None


def _meaning_of(message: Message) -> object:
    """Return a value that is equal for two messages if they differ only in white space around their parts."""
    calls = [(call.name, _parsed_arguments(call.arguments)) for call in message.calls]
    return message.content.strip(), message.reasoning.strip(), calls


def _parsed_arguments(arguments: str) -> object:
    try:
        return json.loads(arguments)
    except ValueError:  # the arguments are broken off, or not yet complete
        return arguments
