"""Read a tool call in JSON from a growing text. Pure.

Nothing is emitted before the name is known. Until then the text may turn out not to be a call, so the caller
has to keep it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from server.formats.call_state import ArgumentReader, CallState, after_blank
from server.formats.description import MAX_MARKUP_HEAD
from server.formats.jsonscan import ValueScanner
from server.text.guard import unguarded
from server.text.message import CallStart

_KEY = re.compile(r'("(?:[^"\\]|\\.)*")\s*(\S)', re.DOTALL)  # a key, and the next character (a colon?)
NAMING_KEYS = frozenset({"name", "function", "tool_name"})
ID_KEYS = frozenset({"id", "tool_call_id"})
_SHORT_KEYS = NAMING_KEYS | ID_KEYS | {"type"}
ARGUMENTS_KEYS = frozenset({"arguments", "parameters"})
_KNOWN_KEYS = _SHORT_KEYS | ARGUMENTS_KEYS


class JsonCallReader(ArgumentReader):
    """Reads one call: an object with name and arguments, or only the arguments if the name came before."""

    def __init__(
        self, begin: Callable[[str, str], CallStart | None], *, strict: bool, id_last: bool = False
    ) -> None:
        """Begin a call.

        Args:
            begin: Given a name and an id, returns the call with its number; None for an unknown name.
            strict: True: fail at keys that calls do not have.
            id_last: True: the id comes last in the object, so nothing is emitted before the object ends.
        """
        super().__init__()
        self._begin = begin
        self._strict = strict
        self._id_last = id_last
        self._name = self._id = ""
        self._nesting = 0
        self._value: ValueScanner | None = None
        self._value_from = 0
        self._streams = False  # True: the current value is emitted as it grows
        self._key: str | None = None
        self._early = ""  # arguments that came before the name
        self._step = self._open_object

    @property
    def forgets(self) -> bool:
        return self.begun is not None and (self._streams or self._value is None)

    @property
    def has_arguments(self) -> bool:
        return self.n_emitted > 0 and not (self._streams and self._value is not None)

    def read(self, text: str, at: int) -> int:
        while self.state is CallState.MORE:
            if self._value is None:
                at = after_blank(text, at)
                if at == len(text):
                    break
            found = self._step(text, at)
            if found is None:
                break
            at = found
        return at

    def named(self, begun: CallStart) -> None:
        """Begin a call whose name came before, so that the text to read has only its arguments."""
        self._announce(begun)
        self._key = "arguments"
        self._step = self._begin_value

    # Steps. Each reads on from `at`, and returns the index that it reached; None if it needs more text.

    def _open_object(self, text: str, at: int) -> int | None:
        if text[at] != "{":
            self.state = CallState.FAILED
            return None
        self._nesting = 1
        self._step = self._read_member
        return at + 1

    def _read_member(self, text: str, at: int) -> int | None:
        """Read a comma, the end of an object, or a key with its colon.

        Return the index after what was read. Return None if the text ends too early or has something else.
        """
        if text[at] == "}":
            self._nesting -= 1
            if not self._nesting:
                self._end_object()
            return at + 1
        if text[at] == ",":
            return at + 1
        key = _KEY.match(text, at, at + MAX_MARKUP_HEAD)
        if key is None and text[at] == '"' and len(text) < at + MAX_MARKUP_HEAD:
            return None
        self._key = _decode_string(key[1]) if key else None
        if not key or key[2] != ":" or (self._strict and self._key not in _KNOWN_KEYS):
            return self._end_object()  # there is no key: the call is broken, or not a call
        self._step = self._begin_value
        return key.end()

    def _begin_value(self, text: str, at: int) -> int | None:
        if self._key == "function" and text[at] == "{":
            self._nesting += 1
            self._step = self._read_member
            return at + 1
        self._value, self._value_from = ValueScanner(), at
        self._streams = self._is_arguments and self.begun is not None and text[at] == "{"
        self._step = self._go_on
        return at

    def _go_on(self, text: str, at: int) -> int | None:
        """Read more of the current value; return the index reached, or None if more text is needed.

        Arguments are emitted as they grow if they are an object and the name is known.
        """
        assert self._value is not None
        end = self._value.scan(text, at)
        if self._streams and end > at:
            self._emit_arguments(text[at:end])
        if not self.begun and self._key in _SHORT_KEYS and end - self._value_from > MAX_MARKUP_HEAD:
            self.state = CallState.FAILED
            return None
        if not self._value.done:
            return end if end > at else None
        if not self._streams:
            self._whole_value(text[self._value_from : end])
        self._value, self._key = None, None
        self._step = self._read_member
        if not self._nesting and self.state is CallState.MORE:  # the value has no object around it
            self._end_object()
        return end

    @property
    def _is_arguments(self) -> bool:
        """True if the current value is the call's arguments: the first value under a key for arguments."""
        return self._key in ARGUMENTS_KEYS and not (self._early or self.n_emitted)

    def _whole_value(self, value: str) -> None:
        if self._is_arguments:
            arguments = _as_object(value)
            if self.begun:
                self._emit_arguments(arguments)
            else:
                self._early = arguments
            return
        text = _decode_string(value) if value.startswith('"') else value
        if self._key in ID_KEYS:
            self._id = text
        elif self._key in NAMING_KEYS and not self._name:
            self._name = text if value.startswith('"') else ""
            if not self._id_last:
                self._emit_name()

    def _emit_name(self) -> None:
        begun = self._begin(self._name, self._id) if self._name else None
        if begun is None:
            self.state = CallState.FAILED
            return
        self._announce(begun)
        if self._early:
            self._emit_arguments(self._early)

    def _end_object(self) -> None:
        if not self.begun and self._id_last:
            self._emit_name()
        if self.begun and not self.n_emitted:
            self._emit_arguments("{}")
        self.state = CallState.DONE if self.begun else CallState.FAILED


def _decode_string(string: str) -> str:
    """Return the text of a JSON string, with U+FFFD for lone surrogates."""
    string = unguarded(string)
    try:
        value = json.loads(string, strict=False)
    except ValueError:
        return string[1:-1]
    return value.encode(errors="replace").decode() if isinstance(value, str) else ""


def _as_object(value: str) -> str:
    """Return arguments as the JSON text of an object, even if the model wrote the object as a string.

    An empty text and null become {}; any other value that is not an object becomes {"arguments": value}.
    """
    text = _decode_string(value).strip() if value.startswith('"') else value
    scanner = ValueScanner()
    if text.startswith("{") and scanner.scan(text, 0) == len(text) and scanner.done:
        return text
    return "{}" if text in ("", "null") else json.dumps({"arguments": text}, ensure_ascii=False)
