"""Distinguish control tokens from text that only spells them. Pure.

In a rendered prompt, the control tokens that the chat template wrote are plain text. If a client's text, or
ordinary tokens of a model, spell a control token, a guard is put before its last character. A guard is a lone
surrogate, which no valid text contains. A text that may contain guards is called guarded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import orjson

from server.llama.backend import Vocabulary

GUARD = "\udfff"
GUARD_BYTES = GUARD.encode(errors="surrogatepass")
_ESCAPED = "\\udfff"
"""A guard as written by templates that escape JSON or Python strings to ASCII."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_N_OPENER = 2
"""Number of first characters by which the texts of control tokens are looked up."""


def controls_of(vocabulary: Vocabulary) -> dict[str, int]:
    """Return the ids of control tokens by their texts."""
    return {text: token for text, token in vocabulary.added.items() if not vocabulary.piece(token)}


def printable(text: str) -> str:
    """Return the text with U+FFFD in place of lone surrogates, which no prompt can contain."""
    return _SURROGATE.sub("\ufffd", text)


def unguarded(text: str) -> str:
    """Remove the guards (lone surrogates) from a text."""
    return text.replace(GUARD, "")


def begun(text: str, n: int) -> str:
    """Return the beginning of a guarded text: its first n characters, guards not counted."""
    at = -1
    while (at := text.find(GUARD, at + 1)) >= 0 and at < n:
        n += 1
    return text[:n]


def encoded(text: str) -> bytes:
    """Return a guarded text in UTF-8; guards, which are lone surrogates, stay in it."""
    return text.encode(errors="surrogatepass")


class Spellings:
    """Finds the texts of control tokens in other texts."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._by_opener: dict[str, tuple[str, ...]] = {}
        for text in sorted({one for one in texts if len(one) >= _N_OPENER}, key=len, reverse=True):
            opener = text[:_N_OPENER]
            self._by_opener[opener] = (*self._by_opener.get(opener, ()), text)
        self.openers = tuple(self._by_opener)
        self._opener = re.compile("|".join(map(re.escape, self.openers)) or r"(?!)")
        self._firsts = {opener[0] for opener in self.openers}
        self.longest = max((len(text) for some in self._by_opener.values() for text in some), default=0)

    def __bool__(self) -> bool:
        return bool(self._by_opener)

    def may_be_in(self, text: str) -> bool:
        return self._opener.search(text) is not None

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of the control tokens' texts in `text`. They do not overlap.

        If several begin at one index, the longest one counts.
        """
        end = 0
        for opener in self._opener.finditer(text):
            start = opener.start()
            if start >= end and (found := self._spelling_at(text, start)):
                end = start + len(found)
                yield start, end

    def guarded(self, text: str) -> str:
        """Return the text with a guard before the last character of each control token that it spells."""
        cuts = [end - 1 for _, end in self.spans(text)]
        if not cuts:
            return text
        parts = (text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True))
        return GUARD.join(parts)

    def n_begun(self, text: str) -> int:
        """Return how many characters at the end of `text` may become the text of a control token."""
        least = max(0, len(text) - self.longest + 1)
        if not any(text.find(first, least) >= 0 for first in self._firsts):
            return 0
        return next((len(text) - at for at in range(least, len(text)) if self._begins_spelling(text[at:])), 0)

    def _spelling_at(self, text: str, start: int) -> str:
        """Return the longest text of a control token that begins at index `start`, "" if none does."""
        some = self._by_opener[text[start : start + _N_OPENER]]
        if not text.startswith(some, start):
            return ""
        return next(one for one in some if text.startswith(one, start))

    def _begins_spelling(self, end: str) -> bool:
        if len(end) < _N_OPENER:
            return end in self._firsts
        some = self._by_opener.get(end[:_N_OPENER], ())
        return any(one.startswith(end) and len(one) > len(end) for one in some)


class OrdinaryText:
    """Puts guards (lone surrogates) into a reply's text where its ordinary tokens spell a control token.

    The text is guarded token by token.
    """

    def __init__(self, markers: Mapping[str, int]) -> None:
        """Take the ids of control tokens, by text. Ordinary tokens that spell such a text get a guard."""
        self._tokens = frozenset(markers.values())
        self._spellings = Spellings(markers)
        self._before = ""  # the latest text that may begin a spelling

    def guarded(self, token: int, text: str) -> str:
        """Return the text of the next token, with a guard if it completes the text of a control token.

        The guard is put before the last character of the control token's text.
        """
        if token in self._tokens:
            self._before = ""
            return text
        n_before = len(self._before)
        whole = self._before + text
        done, parts = n_before, list[str]()
        for _, end in self._spellings.spans(whole):
            parts += [whole[done : end - 1], GUARD]
            done = end - 1
        self._before = whole[max(done + 1 if parts else 0, len(whole) - self._spellings.longest + 1) :]
        return "".join([*parts, whole[done:]]) if parts else text


class ClientTexts:
    """Guards the texts of a request before a template shows them."""

    def __init__(self, controls: Iterable[str], own: Iterable[str] = ()) -> None:
        """Begin with the texts of the control tokens that clients' texts must not spell.

        Args:
            controls: Texts of all control tokens of the vocabulary.
            own: Control tokens that assistant messages from clients may contain, such as thought markers.
        """
        texts, own = set(controls), set(own)
        self._all = _Guarding(texts)
        self._in_reply = _Guarding(texts - own)

    def of(self, value: Any, role: str = "") -> Any:
        """Return a JSON value with all its texts guarded; the same object if no text needs a guard.

        Lone surrogates, which no prompt can contain, become U+FFFD.

        Args:
            value: What a client has sent.
            role: Role of the message that the value is part of, if any.
        """
        guarding = self._in_reply if role == "assistant" else self._all
        return guarding.of(value) if guarding.has_work else value

    def written(self, text: str) -> str:
        """Return a text that a template wrote, with escaped guards turned back into guards.

        Templates that write JSON or Python strings in ASCII escape a guard.
        """
        return text.replace(_ESCAPED, GUARD) if self._all.has_work else text


class _Guarding:
    def __init__(self, texts: set[str]) -> None:
        self.has_work = bool(texts)
        self._beginnings = Spellings(texts)
        self._spellings = Spellings({*texts, _ESCAPED[1:]})
        self._suspect = re.compile(b"|".join([_ESCAPED[1:].encode(), *self._in_json()]))

    def _in_json(self) -> Iterator[bytes]:
        """Yield regular expressions; the JSON of any value that needs a guard matches at least one."""
        for opener in self._beginnings.openers:
            whole, first = (re.escape(orjson.dumps(text)[1:-1]) for text in (opener, opener[0]))
            yield whole
            yield first + rb'(?:\s|\\[nrt])*"'

    def of(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._guard_text(value)
        return value if self._is_clean(value) else self._guard_value(value)

    def _is_clean(self, value: Any) -> bool:
        """Return True if a quick scan of the whole value proves that no text in it needs a guard."""
        try:
            return self._suspect.search(orjson.dumps(value)) is None
        except (TypeError, ValueError):  # for example, lone surrogates
            return False

    def _guard_value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._guard_text(value)
        if isinstance(value, Mapping):
            known = cast(Mapping[str, Any], value)
            return {self._guard_text(key): self._guard_value(one) for key, one in known.items()}
        if isinstance(value, list | tuple):
            return [self._guard_value(one) for one in cast(list[Any], value)]
        return value

    def _guard_text(self, text: str) -> str:
        if not _is_encodable(text):
            text = printable(text)
        if self._beginnings.may_be_in(text) or _ESCAPED[1:] in text:
            text = self._spellings.guarded(text)
        shown = text.rstrip()  # a template may trim the text and append another client text to it
        if self._beginnings.n_begun(shown):
            return f"{shown}{GUARD}{text[len(shown) :]}"
        return text


def _is_encodable(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


NO_CONTROLS = ClientTexts(())
