"""How a model writes down its thoughts and its calls of tools: what its chat template was made for. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

Family: TypeAlias = Literal["hermes", "llama3", "mistral", "functionary"]


@dataclass(frozen=True, slots=True)
class Tags:
    """What a model's thoughts are put between."""

    open: str
    close: str


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """How calls look.

    hermes: <tool_call>{"name": …, "arguments": …}</tool_call>, once for each call
    llama3: {"name": …, "parameters": …}, several separated by ";", after <|python_tag|> or as the whole reply
    mistral: [TOOL_CALLS][{"name": …, "arguments": …}, …]; if not array, [TOOL_CALLS]name[ARGS]{…} for each
    functionary: <function=name>{…}</function>, once for each call

    opens: what begins a call or, for mistral, calls. close: what ends one, if anything does. bare: a reply
    that is such an object from its beginning is a call too. arguments: what the model calls them.
    """

    family: Family
    opens: str
    close: str = ""
    bare: bool = False
    arguments: str = "arguments"
    array: bool = False


HERMES = CallSyntax("hermes", "<tool_call>", "</tool_call>")
LLAMA3 = CallSyntax("llama3", "<|python_tag|>", bare=True, arguments="parameters")
MISTRAL = CallSyntax("mistral", "[TOOL_CALLS]", array=True)
MISTRAL_ARGS = CallSyntax("mistral", "[TOOL_CALLS]")
FUNCTIONARY = CallSyntax("functionary", "<function=", "</function>")

THINKING = (Tags("<think>", "</think>"), Tags("[THINK]", "[/THINK]"))


@dataclass(frozen=True, slots=True)
class Style:
    """What a chat template can do. tags: None, its model does not think aloud. tools, calls: it shows them by
    itself. short_ids: it refuses ids of calls that are not nine letters or digits. single_call: it refuses
    several calls in one reply. objects: it takes arguments as objects, not as JSON text. system: it knows
    that role."""

    tags: Tags | None = None
    syntax: CallSyntax = HERMES
    tools: bool = False
    calls: bool = False
    short_ids: bool = False
    single_call: bool = False
    objects: bool = False
    system: bool = True


_TOOLS = re.compile(r"\btools\b")


def style_of(source: str) -> Style:
    """What a template's text tells, which is all but objects and system."""
    return Style(
        tags=next((tags for tags in THINKING if tags.close in source or tags.open in source), None),
        syntax=_syntax(source),
        tools=bool(_TOOLS.search(source)),
        calls="tool_calls" in source,
        short_ids="length != 9" in source or "length 9" in source,
        single_call="single tool-calls" in source,
    )


def _syntax(source: str) -> CallSyntax:
    """The most telling sign first: templates of one family mention words of others."""
    if HERMES.opens in source:
        return HERMES
    if MISTRAL.opens in source:
        return MISTRAL_ARGS if "[ARGS]" in source else MISTRAL
    if FUNCTIONARY.opens in source and LLAMA3.opens not in source:
        return FUNCTIONARY
    if LLAMA3.opens in source or ("<|start_header_id|>" in source and '"parameters"' in source):
        return LLAMA3
    return HERMES


@dataclass(frozen=True, slots=True)
class Form:
    """How one reply is to be read. tags: look for thoughts; thinking: the prompt has opened them. syntax:
    look for calls, of which functions, and of how many at most (None: any)."""

    tags: Tags | None = None
    thinking: bool = False
    syntax: CallSyntax | None = None
    names: frozenset[str] = frozenset()
    most_calls: int | None = None

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts with a meaning here: the parser must see them, be they control tokens or not."""
        tags = (self.tags.open, self.tags.close) if self.tags else ()
        if self.syntax is None:
            return tags
        more = ("[ARGS]", "[CALL_ID]") if self.syntax.family == "mistral" else ()
        return tuple(filter(None, (*tags, self.syntax.opens, self.syntax.close, *more)))

    def after(self, prompt: str, begun: str = "") -> Form:
        """The same for a reply to this prompt, which may have opened the thoughts; begun: the part of the
        reply that is in the prompt."""
        if self.tags is None:
            return self
        opened = prompt.rstrip().endswith(self.tags.open)
        inside = begun.rfind(self.tags.open) > begun.rfind(self.tags.close)
        return replace(self, thinking=opened or inside)


PLAIN = Form()
