"""Describe the style of a chat template, and how to read a reply to its prompt. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from server.formats.description import Calls, Channels, Family, Thoughts, tokens_in
from server.formats.families import UNKNOWN, family_of
from server.formats.values import Schema


@dataclass(frozen=True, slots=True)
class Style:
    """Properties of a template and its model, found in the template's source."""

    family: Family = UNKNOWN  # how the model writes thoughts and calls
    short_ids: bool = False  # the template accepts only ids of calls that are nine letters or digits
    single_call: bool = False  # the template accepts only one call in a reply
    in_words: bool = False  # the template does not show tools, so the system prompt describes them
    stops: tuple[str, ...] = ()  # texts that end a reply


def style_of(source: str) -> Style:
    """Return the style that a chat template's source shows."""
    return Style(
        family=family_of(source),
        short_ids="length != 9" in source or "length 9" in source,
        single_call="single tool-calls" in source,
    )


@dataclass(frozen=True, slots=True)
class ReplyFormat:
    """Rules for reading one reply."""

    thoughts: Thoughts | None = None  # markers of thoughts; None: do not look for thoughts
    thinking: bool = False  # the prompt has opened the thoughts
    in_thoughts: bool = field(default=False, kw_only=True)  # the prompt also contains the thoughts' beginning
    calls: Calls | None = None  # patterns of calls; None: do not look for calls
    # schema of the arguments of each function, by name
    functions: Mapping[str, Schema] = field(default_factory=dict[str, Schema])
    most_calls: int | None = None  # read at most this number of calls; None: all
    channels: Channels | None = None  # form of the messages' headers; None: they have none
    headed: bool = True  # the prompt ends with a whole header, so the reply begins with text
    drops: tuple[str, ...] = ()  # markers to remove from any text
    stops: tuple[str, ...] = ()  # texts in the content that end a reply

    @property
    def plain(self) -> bool:
        """True if all of the reply is content."""
        return not (self.thoughts or self.calls or self.channels or self.drops)

    @property
    def markers(self) -> tuple[str, ...]:
        """Return all markers of this format. The reader needs their text even if they are control tokens."""
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
    def without_thoughts(self) -> ReplyFormat:
        """Return this format, but with thoughts and their markers read as content."""
        if self.thoughts is None:
            return self
        markers = self.thoughts.open + self.thoughts.close
        drops = tuple(drop for drop in self.drops if drop not in markers)
        return replace(self, thoughts=None, thinking=False, drops=drops)

    def after(self, prompt: str, begun: str = "", *, thought: bool = False) -> ReplyFormat:
        """Return this format for a prompt that may have begun the reply, or opened its thoughts.

        Args:
            prompt: The rendered prompt.
            begun: The part of the reply that is in the prompt.
            thought: True if `begun` belongs to the thoughts.
        """
        form = self
        if self.channels:
            start, message = prompt.rfind(self.channels.start), prompt.rfind(self.channels.message)
            form = replace(form, headed=0 <= start < message)
        if self.thoughts is None:
            return form
        opened = prompt.rstrip().endswith(self.thoughts.open.strip())
        inside = begun.rfind(self.thoughts.open) > begun.rfind(self.thoughts.close)
        begins = inside or (thought and bool(begun))
        return replace(form, thinking=opened or inside or thought, in_thoughts=begins)


PLAIN = ReplyFormat()
