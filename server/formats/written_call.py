"""Read calls whose arguments are not JSON: tagged parameters, or Python's and Gemma's notations. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from server.formats.call_state import ArgumentReader, CallState, after_blank
from server.formats.description import MAX_MARKUP_HEAD, Calls, words
from server.formats.jsonscan import BracketScanner
from server.formats.schemas import STRING, Schema, resolved, types_of
from server.formats.values import LooseText, dumped, nested, quoted, typed
from server.text.message import CallStart
from server.text.stops import n_unfinished

_CDATA = "<![CDATA["
GEMMA_QUOTE = '<|"|>'
_ODD_KEY = re.compile(r'[<>"|]')
"""Characters that are read as part of a key only if the schema names the key."""


class TaggedCallReader(ArgumentReader):
    """Reads tagged parameters. Strings are emitted as they grow, other values once they end."""

    def __init__(self, calls: Calls, begun: CallStart, schema: Schema) -> None:
        super().__init__(begun)
        self._calls = calls
        self._first = words(calls.parameter)[0]
        self._whole = schema
        found = schema.get("properties")
        self._properties: Mapping[str, Schema] = found if isinstance(found, Mapping) else {}
        self._odd = tuple(filter(_ODD_KEY.search, map(str, self._properties)))
        self._head = calls.key_among(self._odd)
        self._keys = set[str]()
        self._key = ""
        self._schema: Schema = {}
        self._types: frozenset[str] | None = None
        self._end = ("", False)
        self._begun_value = False
        self._step = self._read_parameter

    def read(self, text: str, at: int) -> int:
        while self.state is CallState.MORE:
            found = self._step(text, at)
            if found is None:
                break
            at = found
        return at

    @property
    def forgets(self) -> bool:
        return True

    def finish(self) -> None:
        """End the arguments, after the last parameter."""
        self._emit_arguments("}" if self._keys else "{}")
        self.state = CallState.DONE

    def _read_parameter(self, text: str, at: int) -> int | None:
        start = after_blank(text, at)
        last = self._calls.follow[:1]
        if any(text.startswith(marker, start) or marker.startswith(text[start:]) for marker in last):
            return self._read_end(text, at, start)
        if not text.startswith(self._first, start):
            if self._first.startswith(text[start:]):
                return None
            self.finish()
            return at
        head = self._head.match(text, start)
        if head is None or head.end() == len(text):  # a line break may follow
            if len(text) - start >= MAX_MARKUP_HEAD:
                self.finish()
            return None
        if any(one.startswith(text[head.start("key") :]) for one in self._odd):
            return None  # the head may still grow into a known key's head
        self._begin_value(head)
        return head.end()

    def _read_end(self, text: str, at: int, start: int) -> int | None:
        """End the arguments at the marker at `start`; return `at`, or None if the marker is incomplete."""
        if not text.startswith(self._calls.follow[0], start):
            return None
        self.finish()
        return at

    def _begin_value(self, head: re.Match[str]) -> None:
        self._key = head["key"].strip()
        self._schema = resolved(self._properties.get(self._key), self._whole)
        self._types = types_of(self._schema)
        told = head.groupdict()
        if told.get("string"):
            self._types = STRING if told["string"] == "true" else self._types
        elif told.get("type") == "string":
            self._types = STRING
        marker, breaks = self._calls.value_end
        self._end = (marker.replace("⟨key⟩", self._key), breaks)
        self._begun_value = False
        self._step = self._read_value

    def _read_value(self, text: str, at: int) -> int | None:
        marker, breaks = self._end
        if not self._begun_value and "⟨cdata⟩" in self._calls.parameter:
            if text.startswith(_CDATA, at):
                self._end, self._begun_value = ("]]>" + marker, False), True
                self._types = STRING
                self._open_string()
                return at + len(_CDATA)
            if _CDATA.startswith(text[at:]):
                return None
        end, certain = self._find_value_end(text, at)
        if self._types == STRING:
            return self._read_string(text, at, end, certain=certain)
        if end < 0 or not certain:
            return None
        value = text[at : end - 1] if breaks and text[at:end].endswith("\n") else text[at:end]
        self._emit_value(value)
        return end + len(marker)

    def _find_value_end(self, text: str, at: int) -> tuple[int, bool]:
        """Return the index of a possible end tag (-1: none yet), and True if it certainly ends the value.

        A value may contain the tag itself. So the tag ends the value only if another parameter, or the end of
        the arguments, follows it.
        """
        marker, _ = self._end
        end = text.find(marker, at)
        while end >= 0:
            rest = text[after_blank(text, end + len(marker)) :]
            if marker.startswith(rest):  # may become the same tag again, or another marker
                return end, False
            if not rest.startswith(marker):
                if any(rest.startswith(one) for one in self._calls.behind_value):
                    return end, True
                if any(one.startswith(rest) for one in self._calls.behind_value):
                    return end, False
            end = text.find(marker, end + 1)
        return -1, False

    def _read_string(self, text: str, at: int, end: int, *, certain: bool) -> int | None:
        marker, breaks = self._end
        if not self._begun_value:
            self._begun_value = True
            self._open_string()
        stop = end if end >= 0 else len(text) - n_unfinished(text[at:], (marker,))
        if breaks and stop > at and text[stop - 1] == "\n":
            stop -= 1
        if self._streams and stop > at:
            self._emit_arguments(quoted(text[at:stop])[1:-1])
        if not certain:
            return stop if stop > at else None
        if self._streams:
            self._emit_arguments('"')
        self._step = self._read_parameter
        return end + len(marker)

    def _open_string(self) -> None:
        """Begin a string value of the current key, unless the key already has a value."""
        self._streams = self._key not in self._keys
        if self._streams:
            self._emit_arguments(f'{"{" if not self._keys else ", "}{quoted(self._key)}: "')
            self._keys.add(self._key)

    def _emit_value(self, value: str) -> None:
        if "⟨nested⟩" in self._calls.parameter:
            found = nested(value, self._first.removesuffix("<"), self._schema)
            written = dumped(found)
        else:
            written = typed(value, self._types)
        if self._key not in self._keys:
            self._emit_arguments(f"{'{' if not self._keys else ', '}{quoted(self._key)}: {written}")
            self._keys.add(self._key)
        self._step = self._read_parameter


class LooseCallReader(ArgumentReader):
    """Reads arguments between brackets in Python's or Gemma's notation, and emits them once they end."""

    def __init__(self, calls: Calls, begun: CallStart) -> None:
        super().__init__(begun)
        gemma = calls.arguments == "gemma"
        self._sign, self._quotes = (":", (GEMMA_QUOTE,)) if gemma else ("=", ('"', "'"))
        self._scanner = BracketScanner(self._quotes, depth=0 if gemma else 1)
        self._from: int | None = None

    def read(self, text: str, at: int) -> int:
        if self._from is None:
            self._from = at
        end = self._scanner.scan(text, at)
        if self._scanner.done:
            inner = text[self._from : end - 1].removeprefix("{" if self._sign == ":" else "")
            try:
                self._emit_arguments(dumped(LooseText(inner, self._quotes).members(self._sign)))
                self.state = CallState.DONE
            except (ValueError, RecursionError):
                self._emit_arguments(dumped({"arguments": inner}))
                self.state = CallState.DONE
        return end
