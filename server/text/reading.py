"""Parses a growing reply into thoughts, content and tool calls. Pure.

Holds back what may become a mark, and white space that counts only if text follows. The pieces do not depend
on how the text was cut, once neighbours of one kind are joined."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable

from server.text.form import Form
from server.text.message import CallBegun, Content, Piece, Reasoning
from server.text.toolcalls import LONGEST, CallReader, CallState, name_before_arguments

_BLANK = re.compile(r"\s*")


def new_call_id(index: int) -> str:
    return f"call_{secrets.token_hex(12)}"


class MessageReader:
    """Parses one reply. n_settled: characters whose meaning is known; n_thought: end of the thoughts, with
    their marks."""

    def __init__(self, form: Form, call_id: Callable[[int], str] = new_call_id) -> None:
        self.n_settled = 0
        self.n_thought = 0
        self._form = form
        self._call_id = call_id
        self._n_calls = 0
        self._pieces: list[Piece] = []
        self._content_spans: list[tuple[int, int]] = []
        self._buffer = ""  # the text from n_settled on
        self._ended = False
        self._broken_off = False
        self._step: Callable[[], bool] = self._begin
        self._reader: CallReader | None = None
        self._at = 0  # how far the call at the buffer's beginning has been read
        self._in_list = False
        if form.tags and form.thinking:
            self._step = self._think_first

    def feed(self, text: str) -> list[Piece]:
        """Returns the pieces that this text completes."""
        self._buffer += text
        return self._run() if text else []

    def end(self) -> list[Piece]:
        """The text has ended. An unfinished call stays as it is."""
        self._ended = True
        return self._run()

    @property
    def broken_off(self) -> bool:
        """Whether the text ended within the arguments of a call."""
        return self._broken_off

    def is_content(self, start: int, end: int) -> bool:
        """Whether any of these settled characters is content; for start == end, whether content touches
        it."""
        if self._form.plain:
            return True
        spans = reversed(self._content_spans)
        if start == end:
            return any(first <= start <= last for first, last in spans)
        return any(first < end and start < last for first, last in spans)

    def content_part(self, start: int, end: int) -> tuple[int, int]:
        """The part of these characters that is content."""
        if self._form.plain:
            return start, end
        first, last = next(
            ((first, last) for first, last in reversed(self._content_spans) if first < end and start < last),
            (start, start),
        )
        return max(start, first), min(end, last)

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
        """Thoughts or the answer."""
        if self._form.tags is None:
            return self._answer()
        open = self._form.tags.open
        n_blank = _n_blank(self._buffer)
        rest = self._buffer[n_blank : n_blank + len(open)]
        if rest == open:
            self._drop_thought(n_blank + len(open))
            self._step = self._think_first
            return True
        if open.startswith(rest) and not self._ended:
            return False
        return self._answer()

    def _think_first(self) -> bool:
        """Skips white space in front of the thoughts."""
        self._drop_thought(_n_blank(self._buffer))
        if self._buffer:
            self._step = self._think
        return bool(self._buffer)

    def _think(self) -> bool:
        """Thoughts, without white space in front of their end mark."""
        assert self._form.tags
        close = self._form.tags.close
        at = self._buffer.find(close)
        if at >= 0:
            n = len(self._buffer[:at].rstrip())
            self._tell_thought(n)
            self._drop_thought(at - n + len(close))
            self._step = self._answer_first
            return True
        n_held = 0 if self._ended else _n_possible(self._buffer, close)
        self._tell_thought(len(self._buffer[: len(self._buffer) - n_held].rstrip()))
        if self._ended:
            self._drop_thought(len(self._buffer))
        return False

    def _answer_first(self) -> bool:
        """Skips white space between thoughts and answer."""
        self._drop(_n_blank(self._buffer))
        return bool(self._buffer) and self._answer()

    def _answer(self) -> bool:
        """Decides whether it is a call without a mark."""
        syntax = self._form.syntax
        first = self._buffer[_n_blank(self._buffer) :][:1]
        if syntax is None:
            self._step = self._plain
        elif not syntax.bare or (not first and self._ended):
            self._step = self._content
        elif not first:
            return False
        else:
            self._step = self._bare_call if first == "{" else self._content
        return True

    def _content(self) -> bool:
        """Content up to the mark of a call, without white space in front of it."""
        assert self._form.syntax
        opens = self._form.syntax.opens
        at = self._buffer.find(opens)
        if at >= 0:
            self._tell_content(len(self._buffer[:at].rstrip()))
            self._drop(_n_blank(self._buffer))
            self._step = self._marked_call
            return True
        n = len(self._buffer) if self._ended else len(self._buffer) - _n_possible(self._buffer, opens)
        self._tell_content(n if self._ended else len(self._buffer[:n].rstrip()))
        return False

    def _bare_call(self) -> bool:
        return self._call_from(0, strict=True)

    def _marked_call(self) -> bool:
        """The buffer begins with a mark."""
        assert self._form.syntax
        at = len(self._form.syntax.opens)
        match self._form.syntax.family:
            case "functionary":
                end = self._buffer.find(">", at, at + LONGEST)
                return self._named_call(self._buffer[at:end], end + 1) if end >= 0 else self._wait(at)
            case "mistral":
                at += _n_blank(self._buffer[at:])
                if at == len(self._buffer):
                    return self._wait(at)
                if self._buffer[at] in "[{":
                    self._in_list = self._buffer[at] == "["
                    return self._call_from(at + self._in_list)
                found = name_before_arguments(self._buffer, at)
                return self._named_call(*found) if found else self._wait(at)
            case _:
                return self._call_from(at)

    def _wait(self, at: int) -> bool:
        """For the rest of a name that begins at `at`."""
        return (self._ended or len(self._buffer) - at >= LONGEST) and self._no_call()

    def _named_call(self, name: str, at: int) -> bool:
        self._call_from(at)
        assert self._reader
        self._reader.named(name)
        return True

    def _call_from(self, at: int, *, strict: bool = False) -> bool:
        self._at = at
        self._reader = CallReader(self._form.names, self._new_call, strict=strict)
        self._step = self._call
        return True

    def _new_call(self, name: str) -> CallBegun:
        index = self._n_calls
        self._n_calls += 1
        return CallBegun(index, self._call_id(index), name)

    def _call(self) -> bool:
        assert self._reader
        self._at = self._reader.read(self._buffer, self._at)
        self._pieces += self._reader.pieces
        self._reader.pieces.clear()
        match self._reader.state:
            case CallState.DONE:
                self._drop(self._at)
                self._step = self._ignore if self._n_calls == self._form.most_calls else self._after_call
                return True
            case CallState.FAILED:
                return self._no_call()
            case CallState.MORE:
                if self._ended and not self._reader.begun:
                    return self._no_call()
                if self._ended:
                    self._broken_off = not self._reader.has_arguments
                    self._drop(len(self._buffer))
                return False

    def _no_call(self) -> bool:
        """It was no call: it is content, with its mark."""
        assert self._form.syntax
        opens = self._form.syntax.opens
        self._in_list = False
        self._tell_content(len(opens) if self._buffer.startswith(opens) else 0)
        self._step = self._content
        return True

    def _after_call(self) -> bool:
        """An end mark, another call, or text."""
        assert self._form.syntax
        syntax = self._form.syntax
        self._drop(_n_blank(self._buffer))
        if not self._buffer:
            return False
        if self._in_list and self._buffer[0] in ",]":
            return self._go_on_in_list()
        if syntax.bare and self._buffer[0] in ";,{":
            self._drop(self._buffer[0] != "{")
            self._step = self._bare_call
            return True
        if syntax.close and self._buffer.startswith(syntax.close):
            self._drop(len(syntax.close))
            return True
        unfinished = any(mark.startswith(self._buffer) for mark in (syntax.opens, syntax.close))
        if unfinished and not self._ended and not self._buffer.startswith(syntax.opens):
            return False
        self._step = self._content
        return True

    def _go_on_in_list(self) -> bool:
        more = self._buffer[0] == ","
        self._drop(1)
        self._in_list = more
        return self._call_from(0) if more else True

    def _ignore(self) -> bool:
        """Drops what follows the last allowed call."""
        self._drop(len(self._buffer))
        return False


def _n_blank(text: str) -> int:
    blank = _BLANK.match(text)
    return blank.end() if blank else 0


def _n_possible(text: str, mark: str) -> int:
    """Length of the longest proper beginning of the mark that the text ends with."""
    for n in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:n]):
            return n
    return 0
