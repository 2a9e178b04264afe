"""What a chat template can do, and how one reply to it is to be read. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from server.formats.description import Calls, Channels, Family, Thoughts, tokens_in
from server.formats.families import UNKNOWN, family_of
from server.formats.values import Schema


@dataclass(frozen=True, slots=True)
class Style:
    """What a chat template tells of its model."""

    family: Family = UNKNOWN  # how it writes thoughts and calls
    short_ids: bool = False  # the template refuses ids of calls that are not nine letters or digits
    single_call: bool = False  # the template refuses several calls in one reply
    in_words: bool = False  # the template shows no tools: the model is told of them in words
    stops: tuple[str, ...] = ()  # texts that end a reply


def style_of(source: str) -> Style:
    return Style(
        family=family_of(source),
        short_ids="length != 9" in source or "length 9" in source,
        single_call="single tool-calls" in source,
    )


@dataclass(frozen=True, slots=True)
class Form:
    """How one reply is to be read."""

    thoughts: Thoughts | None = None  # how they are marked, if they are looked for
    thinking: bool = False  # the prompt has opened thoughts
    amid: bool = field(default=False, kw_only=True)  # and has written some of them
    calls: Calls | None = None  # how they are written, if they are looked for
    functions: Mapping[str, Schema] = field(default_factory=dict[str, Schema])  # schemas of arguments by name
    most_calls: int | None = None  # calls that are read at most; None: any number
    channels: Channels | None = None  # how messages have headers, if they have
    headed: bool = True  # the prompt has ended a header, so that the reply begins with text
    drops: tuple[str, ...] = ()  # marks that are no part of any text
    stops: tuple[str, ...] = ()  # texts in the content that end a reply

    @property
    def plain(self) -> bool:
        """Whether its text is content and nothing else."""
        return not (self.thoughts or self.calls or self.channels or self.drops)

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts with a meaning here: the parser must see them, be they control tokens or not."""
        texts = list(self.drops)
        if self.thoughts:
            texts += [self.thoughts.open, self.thoughts.close]
        if self.channels:
            texts += [self.channels.start, self.channels.header, self.channels.content, *self.channels.ends]
        if self.calls:
            texts += self.calls.texts
        found = (piece for text in texts for piece in (text, *tokens_in(text)))
        return tuple(dict.fromkeys(text for text in found if text.strip()))

    @property
    def without_thoughts(self) -> Form:
        """The same, but thoughts are content, with their marks."""
        if self.thoughts is None:
            return self
        marks = self.thoughts.open + self.thoughts.close
        drops = tuple(drop for drop in self.drops if drop not in marks)
        return replace(self, thoughts=None, thinking=False, drops=drops)

    def after(self, prompt: str, begun: str = "", *, thought: bool = False) -> Form:
        """The same for a reply to this prompt, which may have opened the thoughts; begun: the part of the
        reply that is in the prompt; thought: that is its thoughts."""
        form = self
        if self.channels:
            start, message = prompt.rfind(self.channels.start), prompt.rfind(self.channels.message)
            form = replace(form, headed=0 <= start < message)
        if self.thoughts is None:
            return form
        opened = prompt.rstrip().endswith(self.thoughts.open.strip())
        inside = begun.rfind(self.thoughts.open) > begun.rfind(self.thoughts.close)
        return replace(form, thinking=opened or inside or thought, amid=inside or (thought and bool(begun)))


PLAIN = Form()
