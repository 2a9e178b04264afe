"""Read a growing reply as a message: thoughts, content and tool calls. Pure.

Text that may still become a marker is held back, and so is white space that counts only if text follows it.
Once adjacent pieces of one kind are joined, they do not depend on how the text was split among feed() calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

from server.formats.call_state import ArgumentReader, CallState, after_blank, new_call_id
from server.formats.description import MAX_MARKUP_HEAD, Calls, Thoughts
from server.formats.json_call import JsonCallReader
from server.formats.markers import Markers
from server.formats.parsed_text import ParsedText
from server.formats.reader_choice import reader_of
from server.text.message import CallStart, Piece
from server.text.reply_format import ReplyFormat

_NOTHING = Thoughts("", "")
_NO_CALLS = Calls("⟨object⟩")


class MessageReader(ParsedText):
    """Reads one reply. Text that contains a guard (guard.py) is never a marker. Positions count guards.

    Methods that return a bool are steps. True: the next step can run; False: more text is needed.
    """

    def __init__(
        self,
        form: ReplyFormat,
        call_id: Callable[[int], str] = new_call_id,
        *,
        stops: Sequence[str] = (),
        n_indent: int = 0,
    ) -> None:
        """Begin a reply.

        Args:
            form: How to read the reply.
            call_id: Given a call's number, returns its id, if the model gives none.
            stops: Strings in the content that end the reply; a stop string and later text are not emitted.
            n_indent: Minimum indentation, in spaces, of later lines of content; a line with less ends the
                reply.
        """
        super().__init__((*form.stops, *stops), n_indent, plain=form.plain)
        self.form = form
        self.broken_off = False  # the text ended within a call's arguments
        self._n_calls = 0
        self._thoughts = thoughts = form.thoughts or _NOTHING
        self._calls = calls = form.calls or _NO_CALLS
        self.call_id = call_id
        self._at = 0  # how far the call at the buffer's beginning has been read
        self._within = False  # True between the text that opens calls and the text that closes them
        begins = calls.markers if form.calls and not form.channels else ()
        ends = (form.channels.start, *form.channels.ends) if form.channels else ()
        again = (thoughts.open,) if thoughts.anywhere and not form.channels else ()
        self._in_content = Markers((*begins, *form.drops, *ends, *again))
        # True: a call within thoughts has ended them, and the model may still write their closing marker
        self._behind_thoughts = Markers((*begins, *form.drops, thoughts.close, *again))
        close = ends if form.channels else (thoughts.close,)
        self._in_thoughts = Markers((*close, *begins))
        self._before_call = self._in_content
        self._after = Markers((*calls.follow, *begins) if form.calls else ())
        self._named = ""  # name of the function in a channel's header
        self._step = self._first_step()

    def _first_step(self) -> Callable[[], bool]:
        if self.form.thoughts and self.form.thinking:
            return self._read_thoughts if self.form.in_thoughts else self._think_first
        return self._begin_reply if self.form.headed else self._read_header

    def feed(self, text: str) -> list[Piece]:
        """Read more text, and return the pieces that are now certain."""
        self._buffer += text
        return self._run_steps()

    def end(self, *, cut: bool = False) -> list[Piece]:
        """Return the remaining pieces. cut: a limit ended the text; then drop a call that has no name yet."""
        self._ended, self._cut = True, cut
        return self._run_steps()

    def _run_steps(self) -> list[Piece]:
        while self._step():
            pass
        return self._take_pieces()

    def _read_plain(self) -> bool:
        self._emit_up_to(len(self._buffer), marker=False, keeps_blank=True)
        self._step = self._drop_rest if self.stopped else self._read_plain
        return False

    def _begin_reply(self) -> bool:
        """Read the beginning of a reply to see if thoughts come first. Drop a lone closing marker."""
        thoughts = self.form.thoughts
        if thoughts is None:
            return self._begin_answer()
        n_blank = after_blank(self._buffer)
        rest = self._buffer[n_blank:]
        for marker, step in ((thoughts.open, self._think_first), (thoughts.close, self._answer_first)):
            if rest.startswith(marker):
                self._drop_thought(n_blank + len(marker))
                self._step = step
                return True
        if any(marker.startswith(rest) for marker in (thoughts.open, thoughts.close)) and not self._ended:
            return False
        return self._begin_answer()

    def _think_first(self) -> bool:
        """Skip white space before the thoughts; return False if more text is needed."""
        self._drop_thought(after_blank(self._buffer))
        self._step = self._read_thoughts if self._buffer else self._step
        return bool(self._buffer)

    def _read_thoughts(self) -> bool:
        """Read thoughts up to a marker, without white space at their end; return True if a marker came."""
        found = self._in_thoughts.first(self._buffer, ended=self._ended)
        n = len(self._buffer[: found.at].rstrip())
        self._emit_thought(n)
        if found.marker:
            self._end_thought(found.marker)
            return True
        if self._ended:
            self._drop_thought(len(self._buffer))
        return False

    def _end_thought(self, marker: str) -> None:
        """End the thoughts at a marker, either their closing marker or the marker of a call."""
        n_blank, channels = after_blank(self._buffer), self.form.channels
        if marker in self._calls.markers and not channels:
            self._blank = n_blank
            self._in_content, self._before_call = self._behind_thoughts, self._in_content
            self._step = partial(self._open_call, self._calls.opening, self._no_call_in_thoughts)
        else:
            is_header = channels is not None and marker == channels.start
            self._drop_thought(n_blank + (0 if is_header else len(marker)))
            self._step = self._read_header if is_header else self._answer_first

    def _answer_first(self) -> bool:
        """Skip white space before the answer and begin it; return False if more text is needed."""
        self._drop(after_blank(self._buffer))
        return bool(self._buffer) and self._begin_answer()

    def _begin_answer(self) -> bool:
        """Begin the answer, which may be a call without a marker; return False if more text is needed."""
        if self.form.plain or (self.form.thoughts and not self._in_content):
            self._step = self._read_plain
            return True
        first = self._buffer[after_blank(self._buffer) :][:1]
        if self.form.calls and self._calls.bare and first == "{":
            return self._call_from(0, self._object_reader(strict=True))
        if self.form.calls and self._calls.bare and not first and not self._ended:
            return False
        self._step = self._read_content
        return True

    def _read_content(self) -> bool:
        """Read content up to a marker. White space before the marker is left out."""
        text = self._buffer[self._n_plain :]
        found = self._in_content.first(text, ended=self._ended)
        if self._ended and (n := self._in_content.broken_off(text)) is not None and n <= found.at:
            self._emit_up_to(self._n_plain + n, marker=True, keeps_blank=False)
            return self._drop_rest()
        keeps_blank = self._ended and not found.marker
        n = self._n_plain + found.at
        self._emit_up_to(n, marker=bool(found.marker), keeps_blank=keeps_blank)
        if self.stopped:
            self._step = self._drop_rest
        return bool(found.marker) and not self.stopped and self._act_on_marker(found.marker)

    def _act_on_marker(self, marker: str) -> bool:
        """Act on the marker with which the buffer begins, after white space; return True."""
        channels, n_blank = self.form.channels, after_blank(self._buffer)
        if marker in self._calls.markers and not channels:
            self._blank = n_blank
            self._step = partial(self._open_call, self._calls.opening, self._no_call)
            return True
        self._drop(n_blank)
        if channels and marker == channels.start:
            self._step = self._read_header
        elif marker == self._thoughts.open:
            self._drop_thought(len(marker))
            self._step = self._think_first
        elif marker == self._thoughts.close and self._in_content is self._behind_thoughts:
            self._drop_thought(len(marker))
            self._in_content, self._step = self._before_call, self._answer_first
        else:
            self._drop(len(marker))
            self._step = self._skip_silent if channels else self._read_content
        return True

    def _skip_silent(self) -> bool:
        """Skip the text of a message that is not shown; return False if its end has not come yet."""
        found = self._in_content.first(self._buffer, ended=self._ended)
        self._drop(found.at)
        return bool(found.marker) and self._act_on_marker(found.marker)

    def _read_header(self) -> bool:
        """Read a message's header. Drop an unfinished header; treat an overlong header as content."""
        channels = self.form.channels
        assert channels
        at = after_blank(self._buffer)
        begun = self._buffer.startswith(channels.start, at)
        at += len(channels.start) if begun else 0
        end = self._buffer.find(channels.message, at, MAX_MARKUP_HEAD)
        if end < 0:
            if len(self._buffer) < MAX_MARKUP_HEAD and not self._ended:
                return False
            if self._ended and (begun or channels.may_begin_header(self._buffer)):
                return self._drop_rest()
            if begun:  # emit the marker as text too; otherwise it would begin the same header again
                self._emit_content(at)
            self._step = self._read_content
            return bool(self._buffer)
        header = self._buffer[at:end]
        self._drop(end + len(channels.message))
        self._step = self._of_header(*channels.kind_of(header))
        return True

    def _of_header(self, kind: str, name: str) -> Callable[[], bool]:
        """Return the step that reads a message of this kind. name: the function that the header calls."""
        if kind == "call" and self.form.calls:
            self._named = name
            return self._read_called
        if kind == "thought" and self.form.thoughts:
            self.n_thought = self.n_parsed
            return self._think_first
        return self._skip_silent if kind in ("call", "silent") and self.form.calls else self._read_content

    def _read_called(self) -> bool:
        """Read the body of a message that calls a function."""
        if self._calls.arguments == "json":
            begun = self._new_call(self._named)
            return self._call_from(0, self._argument_reader(begun)) if begun else self._no_call()
        return self._open_call(self._calls.opening, self._no_call)

    def _open_call(self, opening: re.Pattern[str], otherwise: Callable[[], bool]) -> bool:
        """Read a call's head, which `opening` matches. If there is no call, run the step `otherwise`."""
        head = opening.match(self._buffer, self._blank)
        if head is None:
            if self._cut and (self._within or self._calls.may_begin(self._buffer[self._blank :])):
                return self._drop_rest()
            return (self._ended or len(self._buffer) - self._blank >= MAX_MARKUP_HEAD) and otherwise()
        self._within = True
        if self._calls.arguments == "object":
            return self._call_from(head.end(), self._object_reader(strict=False), otherwise)
        begun = self._new_call(head["name"], head.groupdict().get("id") or "")
        return self._call_from(head.end(), self._argument_reader(begun), otherwise) if begun else otherwise()

    def _object_reader(self, *, strict: bool) -> JsonCallReader:
        def begin(name: str, id: str) -> CallStart | None:
            return self._new_call(name, id) if not strict or name in self.form.functions else None

        return JsonCallReader(
            begin, strict=strict, id_last=len(self._calls.members) == 3 and self._calls.members[0] == "name"
        )

    def _argument_reader(self, begun: CallStart) -> ArgumentReader:
        return reader_of(self._calls, begun, self.form.functions.get(begun.name, {}))

    def _call_from(
        self, at: int, reader: ArgumentReader, otherwise: Callable[[], bool] | None = None
    ) -> bool:
        self._at, self._step = at, partial(self._read_call, reader, otherwise or self._no_call)
        return True

    def _new_call(self, name: str, id: str = "") -> CallStart | None:
        if not name:
            return None
        index, self._n_calls = self._n_calls, self._n_calls + 1
        return CallStart(index, id or self.call_id(index), name)

    def _read_call(self, reader: ArgumentReader, otherwise: Callable[[], bool]) -> bool:
        self._at = reader.read(self._buffer, self._at)
        self._pieces += reader.pieces
        reader.pieces.clear()
        if reader.forgets:
            self._drop(self._at)
            self._at = 0
        if reader.state is CallState.FAILED or (self._ended and not reader.begun):
            unnamed = self._cut and self._within and reader.state is CallState.MORE
            return self._drop_rest() if unnamed else otherwise()
        if reader.state is CallState.DONE:
            self._drop(self._at)
            self._step = self._drop_rest if self._n_calls == self.form.most_calls else self._after_call
            return True
        if self._ended:
            self.broken_off = not reader.has_arguments
            self._drop(len(self._buffer))
        return False

    def _no_call(self) -> bool:
        """Go back to content: emit the marker of the supposed call as text; return True."""
        self._n_plain = self._n_marker
        self._within, self._step = False, self._read_content
        return True

    def _no_call_in_thoughts(self) -> bool:
        self._in_content = self._before_call
        self._emit_thought(self._n_marker)
        self._within, self._step = False, self._read_thoughts
        return True

    @property
    def _n_marker(self) -> int:
        """Return the length of the white space and the marker (if any) with which the buffer begins."""
        markers = (len(one) for one in self._calls.markers if self._buffer.startswith(one, self._blank))
        return self._blank + next(markers, 0)

    def _after_call(self) -> bool:
        """Read what follows a call: the text that closes calls, another call, or content."""
        self._drop(after_blank(self._buffer))
        if not self._buffer:
            return False
        calls = self._calls
        if self.form.channels:
            self._step = self._skip_silent
            return True
        marker = self._after.at_beginning(self._buffer, ended=self._ended)
        if marker is None:
            return False
        if self._ended and self._after.grows(self._buffer):  # the text breaks off within the call's end
            return self._drop_rest()
        if marker in calls.markers:
            self._step = partial(self._open_call, calls.opening, self._no_call)
        elif marker or self._buffer[0] in ",;":
            return self._skip_marker(marker or self._buffer[0])
        elif self._within and calls.arguments == "object" and self._buffer[0] == "{":
            return self._call_from(0, self._object_reader(strict=calls.bare))
        else:
            self._step = self._read_content
        return True

    def _skip_marker(self, marker: str) -> bool:
        """Skip a marker after a call, and expect another call if the marker separates calls."""
        self._drop(len(marker))
        closes = self._calls.close.split()
        self._within = self._within and not (closes and marker == closes[-1])
        between = self._calls.between.strip() or ","
        if marker == between or marker in ",;":
            self._step = partial(self._open_call, self._calls.another, self._no_call)
        return True

    def _drop_rest(self) -> bool:
        """Drop the rest of the text: text after the reply's end, or a call that breaks off too early."""
        self._drop(len(self._buffer))
        return False
