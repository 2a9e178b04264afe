"""What a model writes beside plain text, as data: its thoughts, its calls of tools, its channels. Pure.

A pattern is text as the model writes it, with slots in it. White space in a pattern may be missing or be more
in a reply; the sign · is a place where white space may stand though the model seldom writes it.

What stands between ⟦ and ⟧ may be missing; with an id in it, it is not asked for.

Slots of a call:  ⟨name⟩ of the function · ⟨id⟩ that the model gives · ⟨named_id⟩ functions.name:number, which
  is both · ⟨nth⟩ call of this reply, counted from 1
  its arguments, one of:
  ⟨object⟩      name and arguments in one JSON object, under the keys of `members`
  ⟨json⟩        an object in JSON
  ⟨parameters⟩  each as `parameter` says
  ⟨python⟩      key=value, … in Python
  ⟨gemma⟩       {key:value, …}, strings between <|"|>
Slots of a parameter: ⟨key⟩ · ⟨string⟩, whether the value is a string: true or false · ⟨type⟩, its JSON type
  its value, one of:
  ⟨value⟩       text as it is if the schema says string, else JSON
  ⟨cdata⟩       such a value, or a CDATA section
  ⟨nested⟩      such a value, or elements within elements
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

_TOKENS = re.compile(r"(\]<\]\w+\[>\[|</?[^<>\s]+>|\[/?\w+\])")
SLOT = re.compile(r"⟨(\w+)⟩")
ARGUMENTS = ("object", "json", "parameters", "python", "gemma")
LONGEST = 256
"""Characters before a call's arguments (mark, name, id), before a parameter's value, of a key, of a channel's
header. Without this, text that is no call would be held back to its end, and read anew with each token."""
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
    """What a model's thoughts are put between. anywhere: they may come after content, too."""

    open: str
    close: str
    anywhere: bool = False


@dataclass(frozen=True)
class Calls:
    """call: the pattern of one. open, between, close: what stands before the first call, between two, and
    after the last; each: every call has its own open and close. members: keys of ⟨object⟩ for name and
    arguments, as they are written; a third one is the id's. bare: a reply that is such a call from its
    beginning is one without open. A call ends the thoughts that it begins in."""

    call: str
    open: str = ""
    close: str = ""
    between: str = ""
    each: bool = False
    parameter: str = ""
    members: tuple[str, ...] = ("name", "arguments")
    bare: bool = False

    @cached_property
    def arguments(self) -> str:
        """Which slot has the arguments."""
        return next(slot for slot in SLOT.findall(self.call) if slot in ARGUMENTS)

    @cached_property
    def _halves(self) -> list[str]:
        """The call before and after its arguments."""
        return self.call.split(f"⟨{self.arguments}⟩")

    @cached_property
    def opening(self) -> re.Pattern[str]:
        """All that stands before the arguments of a first call; open may be missing where the call has a
        mark of its own."""
        own = words(self._halves[0])
        opens = r"\s*".join(map(re.escape, words(self.open)))
        return re.compile(rf"\s*(?:{opens})?{self._head}" if own[:1] else rf"\s*{opens}{self._head}")

    @cached_property
    def another(self) -> re.Pattern[str]:
        """All that stands before the arguments of a call where one is expected."""
        return re.compile(self._head)

    @property
    def _head(self) -> str:
        return r"\s*" + pattern(self._halves[0]) + r"\s*" + self._begin

    @property
    def _begin(self) -> str:
        if self.arguments != "parameters":
            return _BEGINS[self.arguments]
        follow = [words(self.parameter)[0], *words(self._halves[1])[:1], *words(self.close)[:1]]
        return rf"(?={'|'.join(map(re.escape, follow))})"

    @cached_property
    def marks(self) -> tuple[str, ...]:
        """What a first call begins with."""
        own = words(self._halves[0])[:1] if not self._halves[0].startswith("⟨") else []
        return tuple(dict.fromkeys([*words(self.open)[:1], *own]))

    def may_begin(self, text: str) -> bool:
        """Whether text from a mark on may become the beginning of a first call."""
        begun, own = "".join(text.split()), self._halves[0]
        for head in (self.open + own, own):
            fixed, *free = re.split("[⟨⟦]", head if "⟨" in head else head + "{", maxsplit=1)
            whole = "".join(re.split(r"[\s·]+", fixed))
            if whole.startswith(begun) or (free and begun.startswith(whole)):
                return True
        return False

    @cached_property
    def follow(self) -> tuple[str, ...]:
        """What may stand behind a call's arguments, beside white space."""
        return tuple(dict.fromkeys([*words(self._halves[1]), *words(self.close), *words(self.between)]))

    @cached_property
    def key(self) -> re.Pattern[str]:
        """A parameter before its value, with one line break before that if it is written."""
        head = re.split(_VALUE, self.parameter)[0]
        return re.compile(pattern(head.rstrip("\n")) + ("\n?" if head.endswith("\n") else ""))

    @cached_property
    def value_end(self) -> tuple[str, bool]:
        """What ends a value, with the slot ⟨key⟩ or without, and whether a line break before it belongs to
        that."""
        tail = re.split(_VALUE, self.parameter)[1]
        return tail.strip(), tail.startswith("\n")

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """All fixed text of it, in pieces: any of them may be control tokens of a vocabulary."""
        patterns = (self.open, self.call, self.between, self.close, self.parameter)
        extra = ('<|"|>',) if self.arguments == "gemma" else ()
        return (*(part for one in patterns for part in words(one)), *extra)


@dataclass(frozen=True)
class Channels:
    """Messages with a header each, which says what they are: start, header, message, text, an end.

    header: the pattern of a call's with what ends it, whose body is the call; content: that of content's.
    thought, call: what a header has for thoughts, and for a call, whose name is the group "name". silent:
    what it has for neither these nor content. ends: a message's ends, beside start."""

    start: str
    message: str
    header: str
    content: str
    ends: tuple[str, ...] = ()
    thought: str | None = None
    call: str | None = None
    silent: str | None = None

    def may_begin_header(self, text: str) -> bool:
        """Whether text without the end of a header may be the beginning of one."""
        begun = text.strip()
        heads = [
            tokens_in(part)[0] for part in (self.start, self.header.strip(), self.content.strip()) if part
        ]
        fixed = [head.partition("⟨")[0] for head in heads]
        if any(head and (head.startswith(begun) or begun.startswith(head)) for head in fixed):
            return True
        return "" in fixed and re.fullmatch(NAME, begun) is not None

    def kind_of(self, header: str) -> tuple[str, str]:
        """call, with the function's name, silent, thought, or content."""
        called = re.search(self.call, header) if self.call else None
        if called:
            return "call", called["name"]
        if self.silent and re.search(self.silent, header):
            return "silent", ""
        return ("thought" if self.thought and re.search(self.thought, header) else "content"), ""


@dataclass(frozen=True)
class Family:
    """signs: what all templates of it have, or of alternatives one each. drops: marks that mean nothing to
    who reads the reply."""

    name: str
    signs: tuple[str | tuple[str, ...], ...]
    thoughts: Thoughts | None = None
    calls: Calls | None = None
    channels: Channels | None = None
    drops: tuple[str, ...] = ()

    def fits(self, source: str) -> bool:
        return all(
            any(one in source for one in ((sign,) if isinstance(sign, str) else sign)) for sign in self.signs
        )


def tokens_in(text: str) -> list[str]:
    """Pieces of fixed text that vocabularies may have as control tokens, with what is between them."""
    return [piece for piece in _TOKENS.split(text) if piece]


def is_token(text: str) -> bool:
    """Whether a vocabulary may have this fixed text as a control token."""
    return _TOKENS.fullmatch(text) is not None


def words(text: str) -> list[str]:
    """Fixed text of a pattern, in pieces without white space or slots."""
    return [word for part in SLOT.split(text)[::2] for word in re.split(r"[\s·⟦⟧]+", part) if word]


def pattern(text: str) -> str:
    """A regular expression for a pattern."""
    parts = SLOT.split(text)
    fixed = (_loosely(part) for part in parts[::2])
    slots = (_OF_SLOTS[slot] for slot in [*parts[1::2]])
    return "".join(one + next(slots, "") for one in fixed)


def _loosely(text: str) -> str:
    spaced = r"\s*".join(re.escape(piece) for piece in re.split(r"[\s·]+", text))
    return spaced.replace("⟦", "(?:").replace("⟧", ")?")
