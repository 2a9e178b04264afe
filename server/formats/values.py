"""Convert values that models write in other forms to JSON. Pure.

These forms are text whose type a schema defines, tagged elements, and Python's or Gemma's notation.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NoReturn, cast

from server.formats.schemas import STRING, Schema, fits, resolved, types_of

MAX_VALUE_DEPTH = 32
"""Maximum nesting of values; deeper values stay text. Arguments of tools are far less nested."""
_WORDS: dict[str, Any] = {
    "true": True,
    "false": False,
    "null": None,
    "True": True,
    "False": False,
    "None": None,
}
_SPACE = re.compile(r"\s*")
_WORD = re.compile(r"[^\s,:=()\[\]{}]+")
_VALUE_BEGINS = re.compile(rf"\s*(?:[\[({{]|-?\d|(?:{'|'.join(_WORDS)})\b)")
"""Matches the beginning of a value that is not a string: a bracket, a number or a word."""
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""}


def typed(text: str, types: frozenset[str] | None) -> str:
    """Return a value's text as JSON: unchanged if it is JSON of one of these types, else as a string."""
    if types == STRING:
        return quoted(text)
    stripped = text.strip()
    try:
        value = json.loads(stripped, parse_constant=_refuse_constant)
        written = stripped
    except (ValueError, RecursionError):
        try:
            value = LooseText(stripped).whole()
            written = dumped(value)
        except (ValueError, RecursionError):
            return quoted(text)
    is_text = isinstance(value, str) and "string" in (types or ())
    return written if fits(value, types) and not is_text else quoted(text)


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(word)


def _finite_or_text(word: str) -> float | str:
    """Return the number that a word spells, or the word if JSON cannot hold the number, such as 1e999."""
    number = float(word)
    return number if math.isfinite(number) else word


def _read_json(text: str) -> Any:
    """Parse JSON, in which NaN and infinite numbers stay text."""
    return json.loads(text, parse_float=_finite_or_text, parse_constant=str)


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def nested(text: str, marker: str, schema: Schema) -> Any:
    """Return a value written as elements <key>…</key>; the elements of an array are named <item>.

    If an element is not closed, return the text.

    Args:
        text: The elements, or the text of a plain value.
        marker: Text before each tag.
        schema: Schema of the value.
    """
    if marker not in text:
        types = types_of(schema) or STRING
        if not text.strip() and types <= {"array", "object"}:
            return [] if "array" in types else {}
        return _read_json(typed(text, types_of(schema)))
    found: dict[str, Any] = {}
    items: list[Any] = []
    rest = text.strip()
    while rest:
        key, _, rest = rest.removeprefix(marker + "<").partition(">")
        if (end := _closing_tag(rest, f"{marker}<{key}>", f"{marker}</{key}>")) is None:
            return text
        value, rest = rest[: end[0]], rest[end[1] :]
        inner = nested(value, marker, _schema_within(schema, key))
        items.append(inner)
        found[key] = inner
        rest = rest.strip()
    return items if list(found) == ["item"] else found


def _closing_tag(text: str, open: str, close: str) -> tuple[int, int] | None:
    """Return (start, end) of the tag that closes the element in which `text` begins, None if not found."""
    depth = 1
    for tag in re.finditer(f"{re.escape(open)}|{re.escape(close)}", text):
        depth += 1 if tag[0] == open else -1
        if not depth:
            return tag.span()
    return None


def _schema_within(schema: Schema, key: str) -> Schema:
    """Return the schema of the element `key` in a value of this schema. "item" means an array's elements."""
    properties = cast(Mapping[str, Schema], schema.get("properties") or {})
    return resolved(schema.get("items") if key == "item" else properties.get(key), schema)


class LooseText:
    """Parses values in Python, in JSON or in Gemma's notation.

    Methods raise ValueError for any other text.
    """

    def __init__(self, text: str, quotes: tuple[str, ...] = ('"', "'")) -> None:
        self._text = text
        self._at = 0
        self._quotes = quotes

    def whole(self) -> Any:
        """Return the value that the whole text spells. Raises ValueError if other text follows it."""
        value = self._read_value(0)
        if self._next_character():
            raise ValueError(self._text)
        return value

    def members(self, sign: str, close: str = "") -> dict[str, Any]:
        """Read members up to the bracket `close` ("": the text's end); `sign` separates key and value."""
        return self._read_members(sign, close, 0)

    def _read_members(self, sign: str, close: str, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while (next := self._next_character()) != close:
            if next == ",":
                self._at += 1
                continue
            key = self._read_key(sign)
            found[key] = self._read_value(depth)
        self._at += len(close)
        return found

    def _next_character(self) -> str:
        blank = _SPACE.match(self._text, self._at)
        self._at = blank.end() if blank else self._at
        return self._text[self._at : self._at + 1]

    def _read_key(self, sign: str) -> str:
        """Read a quoted or bare key and the sign that follows it, such as a colon; return the key."""
        quote = next((one for one in self._quotes if self._text.startswith(one, self._at)), None)
        start = self._at
        key = "" if quote is None else self._read_string(quote)
        end = self._end_of_key(sign)
        between = self._text[self._at : end].strip()
        if end < 0 or not (between if quote is None else not between):
            raise ValueError(self._text[start:])
        self._at = end + len(sign)
        return between if quote is None else key

    def _end_of_key(self, sign: str) -> int:
        """Return the index of the sign that ends a key: the first sign before a value.

        A key may contain the sign itself. If no value follows any sign, return the index of the first sign.
        If there is no sign, return -1.
        """
        first = end = self._text.find(sign, self._at)
        while end >= 0:
            behind = self._text[end + len(sign) :].lstrip()
            if behind.startswith(self._quotes) or _VALUE_BEGINS.match(behind):
                return end
            end = self._text.find(sign, end + 1)
        return first

    def _read_value(self, depth: int) -> Any:
        if depth > MAX_VALUE_DEPTH:
            raise ValueError(self._text)
        first = self._next_character()
        quote = next((one for one in self._quotes if self._text.startswith(one, self._at)), None)
        if quote is not None:
            return self._read_string(quote)
        if first == "{":
            self._at += 1
            return self._read_members(":", "}", depth + 1)
        if first in ("[", "("):
            return self._read_list("]" if first == "[" else ")", depth + 1)
        word = _WORD.match(self._text, self._at)
        if word is None:
            raise ValueError(self._text)
        self._at = word.end()
        return _WORDS[word[0]] if word[0] in _WORDS else _read_json(word[0])

    def _read_list(self, close: str, depth: int) -> list[Any]:
        self._at += 1
        found: list[Any] = []
        while (next := self._next_character()) != close:
            if next == ",":
                self._at += 1
            else:
                found.append(self._read_value(depth))
        self._at += 1
        return found

    def _read_string(self, quote: str) -> str:
        start = self._at = self._at + len(quote)
        if len(quote) > 1:  # long quotation marks have no escapes
            end = self._text.find(quote, start)
        else:
            end = next(
                (
                    m.start()
                    for m in re.finditer(rf"\\.|{quote}", self._text[start:], re.DOTALL)
                    if m[0] == quote
                ),
                -1,
            )
            end += start if end >= 0 else 0
        if end < 0:
            raise ValueError(self._text)
        self._at = end + len(quote)
        text = self._text[start:end]
        return text if len(quote) > 1 else _ESCAPE.sub(_unescape_match, text)


def _unescape_match(escape: re.Match[str]) -> str:
    what = escape[1]
    if len(what) > 1:
        return chr(int(what[1:], 16)).encode(errors="replace").decode()
    return _ESCAPED.get(what, what if what in "\\'\"/" else escape[0])
