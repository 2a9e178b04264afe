"""A reply's text read as a message while it grows: thoughts, content, calls of tools. Pure.

What may still become a mark is held back, and so is white space that belongs to the text only if text
follows. However the text is cut, the pieces are the same once neighbours of one kind are joined.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial

from server.text.form import HERMES, THINKING, Form
from server.text.message import CallBegun, Content, Piece, Reasoning
from server.text.stops import n_unfinished
from server.text.toolcalls import LONGEST, CallReader, CallState, after_blank, name_before_arguments


def new_call_id(index: int) -> str:
    return f"call_{secrets.token_hex(12)}"


class MessageReader:
    """Reads one reply. n_settled: characters whose meaning is known; n_thought: how far the thoughts reach,
    with their marks; broken_off: the text has ended within a call, before the end of its arguments."""

    def __init__(self, form: Form, call_id: Callable[[int], str] = new_call_id) -> None:
        self.n_settled = 0
        self.n_thought = 0
        self.broken_off = False
        self._form = form
        self._tags = form.tags or THINKING[0]
        self._syntax = form.syntax or HERMES
        self._call_id = call_id
        self._n_calls = 0
        self._pieces: list[Piece] = []
        self._content_spans = list[tuple[int, int]]() if form.tags or form.syntax else [(0, 0)]
        self._buffer = ""  # the text from n_settled on
        self._ended = False
        self._step: Callable[[], bool] = self._think_first if form.tags and form.thinking else self._begin
        self._at = 0  # how far the call at the buffer's beginning has been read
        self._in_list = False

    def feed(self, text: str) -> list[Piece]:
        """More of the text; returns what it makes known."""
        self._buffer += text
        return self._run()

    def end(self) -> list[Piece]:
        """There is no more. A call that is broken off stays as it is."""
        self._ended = True
        return self._run()

    def is_content(self, start: int, end: int) -> bool:
        """Whether any of these characters of the text, by now settled, is content; of none: whether they are
        within or beside it."""
        return self._content_at(start, end) is not None

    def content_part(self, start: int, end: int) -> tuple[int, int]:
        """Which of these characters, some of which are content, are content."""
        first, last = self._content_at(start, end) or (start, start)
        return max(start, first), min(end, last)

    def _content_at(self, start: int, end: int) -> tuple[int, int] | None:
        beside = start == end
        spans = reversed(self._content_spans)
        return next((span for span in spans if span[0] < end + beside and start < span[1] + beside), None)

    def _run(self) -> list[Piece]:
        while self._step():
            pass
        pieces, self._pieces = self._pieces, []
        return pieces

    # What becomes of the first n characters of the buffer.

    def _drop(self, n: int) -> None:
        self._buffer = self._buffer[n:]
        self.n_settled += n

    def _tell_content(self, n: int) -> None:
        if n:
            self._pieces.append(Content(self._buffer[:n]))
            start, end = self.n_settled, self.n_settled + n
            if self._content_spans and self._content_spans[-1][1] == start:
                start = self._content_spans.pop()[0]
            self._content_spans.append((start, end))
            self._drop(n)

    def _tell_thought(self, n: int) -> None:
        if n:
            self._pieces.append(Reasoning(self._buffer[:n]))
            self._drop_thought(n)

    def _drop_thought(self, n: int) -> None:
        self._drop(n)
        self.n_thought = self.n_settled

    # Steps. Each returns whether another one may follow at once.

    def _plain(self) -> bool:
        self._tell_content(len(self._buffer))
        return False

    def _begin(self) -> bool:
        """Thoughts, or the answer."""
        if self._form.tags is None:
            return self._answer()
        open = self._tags.open
        n_blank = after_blank(self._buffer)
        rest = self._buffer[n_blank : n_blank + len(open)]
        if rest == open:
            self._drop_thought(n_blank + len(open))
            self._step = self._think_first
            return True
        if open.startswith(rest) and not self._ended:
            return False
        return self._answer()

    def _think_first(self) -> bool:
        """White space in front of the thoughts is none of them."""
        self._drop_thought(after_blank(self._buffer))
        if self._buffer:
            self._step = self._think
        return bool(self._buffer)

    def _think(self) -> bool:
        """Up to their end, without the white space in front of that."""
        close = self._tags.close
        at = self._buffer.find(close)
        if at >= 0:
            n = len(self._buffer[:at].rstrip())
            self._tell_thought(n)
            self._drop_thought(at - n + len(close))
            self._step = self._answer_first
            return True
        n_held = 0 if self._ended else n_unfinished(self._buffer, (close,))
        self._tell_thought(len(self._buffer[: len(self._buffer) - n_held].rstrip()))
        if self._ended:
            self._drop_thought(len(self._buffer))
        return False

    def _answer_first(self) -> bool:
        """White space between the thoughts and the answer is no part of it."""
        self._drop(after_blank(self._buffer))
        return bool(self._buffer) and self._answer()

    def _answer(self) -> bool:
        """It may be a call, without a mark."""
        if self._form.syntax is None:
            self._step = self._plain
            return True
        first = self._buffer[after_blank(self._buffer) :][:1]
        if self._syntax.bare and first == "{":
            return self._call_from(0, strict=True)
        if self._syntax.bare and not first and not self._ended:
            return False
        self._step = self._content
        return True

    def _content(self) -> bool:
        """Up to what begins calls, without the white space in front of that."""
        opens = self._syntax.opens
        at = self._buffer.find(opens)
        if at >= 0:
            self._tell_content(len(self._buffer[:at].rstrip()))
            self._drop(after_blank(self._buffer))
            self._step = self._marked_call
            return True
        n = len(self._buffer) if self._ended else len(self._buffer) - n_unfinished(self._buffer, (opens,))
        self._tell_content(n if self._ended else len(self._buffer[:n].rstrip()))
        return False

    def _marked_call(self) -> bool:
        """The buffer begins with a mark."""
        at = len(self._syntax.opens)
        match self._syntax.family:
            case "functionary":
                end = self._buffer.find(">", at, at + LONGEST)
                found = (self._buffer[at:end], end + 1) if end >= 0 else None
            case "mistral":
                at = after_blank(self._buffer, at)
                if self._buffer[at : at + 1] in ("[", "{"):
                    self._in_list = self._buffer[at] == "["
                    return self._call_from(at + self._in_list)
                found = name_before_arguments(self._buffer, at)
            case _:
                return self._call_from(at)
        return self._call_from(found[1], name=found[0]) if found else self._wait(at)

    def _wait(self, at: int) -> bool:
        """For the rest of a name, if there is any: it begins at this place."""
        return (self._ended or len(self._buffer) - at >= LONGEST) and self._no_call()

    def _call_from(self, at: int, *, name: str | None = None, strict: bool = False) -> bool:
        """name: the text has told it, and the arguments are at `at`."""
        self._at = at
        reader = CallReader(self._form.names, self._new_call, strict=strict)
        if name is not None:
            reader.named(name)
        self._step = partial(self._call, reader)
        return True

    def _new_call(self, name: str) -> CallBegun:
        index = self._n_calls
        self._n_calls += 1
        return CallBegun(index, self._call_id(index), name)

    def _call(self, reader: CallReader) -> bool:
        self._at = reader.read(self._buffer, self._at)
        self._pieces += reader.pieces
        reader.pieces.clear()
        if reader.state is CallState.FAILED or (self._ended and not reader.begun):
            return self._no_call()
        if reader.state is CallState.DONE:
            self._drop(self._at)
            self._step = self._ignore if self._n_calls == self._form.most_calls else self._after_call
            return True
        if self._ended:
            self.broken_off = not reader.has_arguments
            self._drop(len(self._buffer))
        return False

    def _no_call(self) -> bool:
        """What looked like one is content, its mark included."""
        opens = self._syntax.opens
        self._in_list = False
        self._tell_content(len(opens) if self._buffer.startswith(opens) else 0)
        self._step = self._content
        return True

    def _after_call(self) -> bool:
        """Its end mark, another call, or text."""
        syntax = self._syntax
        self._drop(after_blank(self._buffer))
        if not self._buffer:
            return False
        if self._in_list and self._buffer[0] in ",]":
            self._in_list = self._buffer[0] == ","
            self._drop(1)
            return self._call_from(0) if self._in_list else True
        if syntax.bare and self._buffer[0] in ";,{":
            self._drop(self._buffer[0] != "{")
            return self._call_from(0, strict=True)
        if syntax.close and self._buffer.startswith(syntax.close):
            self._drop(len(syntax.close))
            return True
        unfinished = any(mark.startswith(self._buffer) for mark in (syntax.opens, syntax.close))
        if unfinished and not self._ended and not self._buffer.startswith(syntax.opens):
            return False
        self._step = self._content
        return True

    def _ignore(self) -> bool:
        """What follows the last call that is wanted."""
        self._drop(len(self._buffer))
        return False
