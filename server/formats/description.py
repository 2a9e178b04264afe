"""Describe, as data, how a model writes thoughts, tool calls and channels. Pure.

A pattern is text as the model writes it, with slots in it. White space in a pattern matches any amount of
white space, including none. The sign · also matches any amount, but nothing is written for it.

Text between ⟦ and ⟧ is optional; if it contains an id slot, it is not written when a call has no id.

Slots of a call:
  ⟨name⟩        name of the function
  ⟨id⟩          id that the model gives
  ⟨named_id⟩    functions.name:number, an id that contains the name
  ⟨nth⟩         number of the call in this reply, from 1
  its arguments, one of:
  ⟨object⟩      name and arguments in one JSON object, under the keys of `members`
  ⟨json⟩        an object in JSON
  ⟨parameters⟩  each in the pattern `parameter`
  ⟨python⟩      key=value, … in Python
  ⟨gemma⟩       {key:value, …}, strings between <|"|>
Slots of a parameter:
  ⟨key⟩         its name
  ⟨string⟩      true if the value is a string, else false
  ⟨type⟩        JSON type of the value
  its value, one of:
  ⟨value⟩       literal text if the schema says string, else JSON
  ⟨cdata⟩       as ⟨value⟩, or a CDATA section
  ⟨nested⟩      as ⟨value⟩, or nested elements
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

_TOKENS = re.compile(r"(\]<\]\w+\[>\[|</?[^<>\s]+>|\[/?\w+\])")
SLOT = re.compile(r"⟨(\w+)⟩")
ARGUMENTS = ("object", "json", "parameters", "python", "gemma")
MAX_MARKUP_HEAD = 256
"""Maximum characters of a call's head (marker, name, id), of a parameter's head, a key or a channel's header.

Without a limit, text that only looks like a call would be held back to its end and rescanned at each token.
"""
_VALUE = "⟨value⟩|⟨cdata⟩|⟨nested⟩"
NAME = r"[\w.:/-]{1,128}"
_OF_SLOTS = {
    "name": rf"(?P<name>{NAME}?)",
    "id": r"(?P<id>[^\s{}\[\]<>|]{0,64}?)",
    "named_id": rf"(?P<id>(?:functions\.)?(?P<name>{NAME}?):\d{{1,6}})",
    "nth": r"\d{1,6}",
    "key": r"(?P<key>[^<>\"|]{1,128}?)",
    "string": r"(?P<string>true|false)",
    "type": r"(?P<type>\w{1,16})",
}
_BEGINS = {"json": r'(?=[{"])', "object": r"(?=\{)", "python": "", "gemma": r"(?=\{)"}


@dataclass(frozen=True, slots=True)
class Thoughts:
    """The markers around a model's thoughts."""

    open: str
    close: str
    anywhere: bool = False  # True: thoughts may also come after content


@dataclass(frozen=True)
class Calls:
    """Patterns of tool calls as a model writes them. A call that begins within thoughts ends them."""

    call: str  # pattern of one call
    open: str = ""  # text before the first call
    close: str = ""  # text after the last call
    between: str = ""  # text between two calls
    each: bool = False  # True: every call has its own open and close
    parameter: str = ""  # pattern of one parameter, for ⟨parameters⟩
    # keys of ⟨object⟩ in their order: name and arguments; three if the id is one of them
    members: tuple[str, ...] = ("name", "arguments")
    bare: bool = False  # True: a reply may begin with a call without `open`

    @cached_property
    def arguments(self) -> str:
        """Return the name of the slot in `call` that stands for the arguments, such as "json"."""
        return next(slot for slot in SLOT.findall(self.call) if slot in ARGUMENTS)

    @cached_property
    def _around_arguments(self) -> list[str]:
        """Return the parts of `call` before and after its arguments."""
        return self.call.split(f"⟨{self.arguments}⟩")

    @cached_property
    def opening(self) -> re.Pattern[str]:
        """Return a regex that matches all text before the arguments of the first call.

        The text before the first call (`open`) is optional if `call` has fixed text before its arguments.
        """
        own = words(self._around_arguments[0])
        opens = r"\s*".join(map(re.escape, words(self.open)))
        return re.compile(
            rf"\s*(?:{opens})?{self._head_regex}" if own[:1] else rf"\s*{opens}{self._head_regex}"
        )

    @cached_property
    def another(self) -> re.Pattern[str]:
        """Return a regex that matches all text before the arguments of a call that follows another call."""
        return re.compile(self._head_regex)

    @property
    def _head_regex(self) -> str:
        return r"\s*" + pattern(self._around_arguments[0]) + r"\s*" + self._begin_regex

    @property
    def _begin_regex(self) -> str:
        if self.arguments != "parameters":
            return _BEGINS[self.arguments]
        follow = [words(self.parameter)[0], *words(self._around_arguments[1])[:1], *words(self.close)[:1]]
        return rf"(?={'|'.join(map(re.escape, follow))})"

    @cached_property
    def markers(self) -> tuple[str, ...]:
        """Return the fixed texts with which the first call may begin."""
        own = words(self._around_arguments[0])[:1] if not self._around_arguments[0].startswith("⟨") else []
        return tuple(dict.fromkeys([*words(self.open)[:1], *own]))

    def may_begin(self, text: str) -> bool:
        """Return True if `text`, which starts with a marker, may become the beginning of a first call."""
        begun, own = "".join(text.split()), self._around_arguments[0]
        for head in (self.open + own, own):
            fixed, *free = re.split("[⟨⟦]", head if "⟨" in head else head + "{", maxsplit=1)
            whole = "".join(re.split(r"[\s·]+", fixed))
            if whole.startswith(begun) or (free and begun.startswith(whole)):
                return True
        return False

    @cached_property
    def follow(self) -> tuple[str, ...]:
        """Return the texts, other than white space, that may follow a call's arguments."""
        return tuple(
            dict.fromkeys([*words(self._around_arguments[1]), *words(self.close), *words(self.between)])
        )

    @cached_property
    def behind_value(self) -> tuple[str, ...]:
        """Return the texts that may follow a value: the start of another parameter, or the arguments' end.

        A tag that looks like the end of a value is part of the value if none of these texts follows it.
        """
        return words(self.parameter)[0], *self.follow[:1]

    @cached_property
    def key(self) -> re.Pattern[str]:
        """Return a regex for a parameter up to its value. A line break before the value is optional."""
        head = re.split(_VALUE, self.parameter)[0]
        return re.compile(pattern(head.rstrip("\n")) + ("\n?" if head.endswith("\n") else ""))

    def key_among(self, names: Sequence[str]) -> re.Pattern[str]:
        """Return the regex `key`, extended to match these names too, whatever characters they contain."""
        if not names:
            return self.key
        known = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
        return re.compile(self.key.pattern.replace("(?P<key>", f"(?P<key>{known}|", 1))

    @cached_property
    def value_end(self) -> tuple[str, bool]:
        """Return the text that ends a value, and True if a preceding line break belongs to this text.

        The text may contain the slot ⟨key⟩.
        """
        tail = re.split(_VALUE, self.parameter)[1]
        return tail.strip(), tail.startswith("\n")

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """Return the pieces of fixed text in all patterns. Any piece may be a control token."""
        patterns = (self.open, self.call, self.between, self.close, self.parameter)
        extra = ('<|"|>',) if self.arguments == "gemma" else ()
        return (*(part for one in patterns for part in words(one)), *extra)


@dataclass(frozen=True)
class Channels:
    """Markers of messages with headers. Each message is: start, header, message marker, text, end."""

    start: str  # text that begins a header
    message: str  # text that ends a header
    header: str  # pattern of a call's header, up to and including its end
    content: str  # pattern of the header of content
    ends: tuple[str, ...] = ()  # texts, beside `start`, that end a message
    thought: str | None = None  # regex found in a header of thoughts
    call: str | None = None  # regex found in a header of a call; its group "name" is the function
    silent: str | None = None  # regex found in a header of text that is neither thought, call nor content

    def may_begin_header(self, text: str) -> bool:
        """Return True if `text`, which does not contain the end of a header, may be the beginning of one."""
        begun = text.strip()
        heads = [
            tokens_in(part)[0] for part in (self.start, self.header.strip(), self.content.strip()) if part
        ]
        fixed = [head.partition("⟨")[0] for head in heads]
        if any(head and (head.startswith(begun) or begun.startswith(head)) for head in fixed):
            return True
        return "" in fixed and re.fullmatch(NAME, begun) is not None

    def kind_of(self, header: str) -> tuple[str, str]:
        """Return the kind of the message with this header, and the function that it calls ("" without one).

        The kinds are "call", "silent", "thought" and "content".
        """
        called = re.search(self.call, header) if self.call else None
        if called:
            return "call", called["name"]
        if self.silent and re.search(self.silent, header):
            return "silent", ""
        return ("thought" if self.thought and re.search(self.thought, header) else "content"), ""


@dataclass(frozen=True)
class Family:
    """A family of models that write thoughts and calls in the same way."""

    name: str
    # texts that every chat template of the family contains; a tuple means at least one of its texts
    signs: tuple[str | tuple[str, ...], ...]
    thoughts: Thoughts | None = None
    calls: Calls | None = None
    channels: Channels | None = None
    drops: tuple[str, ...] = ()  # markers to remove from what the client reads

    def fits(self, source: str) -> bool:
        """Return True if a chat template's source has all signs of the family."""
        return all(
            any(one in source for one in ((sign,) if isinstance(sign, str) else sign)) for sign in self.signs
        )


def tokens_in(text: str) -> list[str]:
    """Split fixed text into possible control tokens and the texts between them."""
    return [piece for piece in _TOKENS.split(text) if piece]


def is_token(text: str) -> bool:
    """Return True if the whole text may be one control token."""
    return _TOKENS.fullmatch(text) is not None


def words(text: str) -> list[str]:
    """Return the fixed text of a pattern, split at white space and slots."""
    return [word for part in SLOT.split(text)[::2] for word in re.split(r"[\s·⟦⟧]+", part) if word]


def pattern(text: str) -> str:
    """Return a regular expression for a pattern as families.py writes it.

    Such a pattern is fixed text with slots such as ⟨name⟩.
    """
    parts = SLOT.split(text)
    fixed = (_loose_regex(part) for part in parts[::2])
    slots = (_OF_SLOTS[slot] for slot in [*parts[1::2]])
    return "".join(one + next(slots, "") for one in fixed)


def _loose_regex(text: str) -> str:
    """Return a regex for the fixed text of a pattern, with its meanings of white space, ·, ⟦ and ⟧."""
    spaced = r"\s*".join(re.escape(piece) for piece in re.split(r"[\s·]+", text))
    return spaced.replace("⟦", "(?:").replace("⟧", ")?")
