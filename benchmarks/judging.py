"""Whether replies that templates write are read, may be forced, and are not barred from free text."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.written_replies import WrittenReply, written_replies
from server.api.call_grammar import CallGrammar
from server.formats.families import family_of
from server.formats.reading import MessageReader
from server.grammar.compiler import Compiler
from server.text.form import Form
from server.text.message import Message, folded
from tests.fake_backend import FakeVocabulary

VOCABULARY = FakeVocabulary()  # bytes: any text has one way to be written


@dataclass(frozen=True, slots=True)
class JudgedReply:
    """what: read, forced, in free text, or in free text and held to a grammar; wrong: "" if all is right."""

    template: str
    what: str
    reply: WrittenReply
    wrong: str


def judged_replies(template: str, source: str) -> Iterator[JudgedReply]:
    """Content beside calls is not forced, so that such replies are not asked of a forced grammar."""
    family = family_of(source)
    for reply in written_replies(source):
        form = Form(
            family.thoughts,
            calls=family.calls,
            functions=reply.functions,
            channels=family.channels,
            drops=family.drops,
        ).after(reply.head)
        yield JudgedReply(template, "read", reply, _misread(reply, form))
        grammar = CallGrammar(VOCABULARY, form)
        if not reply.content:
            text = reply.text if form.thinking or form.channels else reply.text.strip()
            yield JudgedReply(template, "forced", reply, _barred(grammar.required(reply.functions), text))
        free = grammar.calls_in_text(reply.functions)
        yield JudgedReply(template, "in free text", reply, _barred(free, reply.text) if free else "")
        if free:
            yield JudgedReply(template, "held in free text", reply, "")


def _misread(reply: WrittenReply, form: Form) -> str:
    whole = _message(form, [reply.text])
    for size in (1, 2, 3):
        parts = [reply.text[at : at + size] for at in range(0, len(reply.text), size)]
        if _message(form, parts) != whole:
            return f"in pieces of {size} it is read otherwise"
    try:
        calls = [(call.name, json.loads(call.arguments)) for call in whole.calls]
    except ValueError:
        return repr(whole)
    right = calls == list(reply.calls) and whole.content.strip() == reply.content
    return "" if right and whole.reasoning.strip() == reply.reasoning else repr(whole)


def _message(form: Form, parts: Sequence[str]) -> Message:
    reader = MessageReader(form, lambda index: "")
    pieces = [piece for part in parts for piece in reader.feed(part)]
    return folded([*pieces, *reader.end()])


def _barred(lark: str, text: str) -> str:
    """Where a grammar bars a text, "" if nowhere."""
    state = Compiler(VOCABULARY).lark(lark, "tools")()
    for at, token in enumerate([*VOCABULARY.tokenize(text, special=False), min(VOCABULARY.eog)]):
        if not state.allows(token):
            return f"barred after {text.encode()[:at][-60:]!r}"
        state.accept(token)
    return ""


def report_written(found: Sequence[JudgedReply]) -> Iterator[str]:
    right, all = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for one in found:
        for template in (one.template, "in all"):
            all[template, one.what] += 1
            right[template, one.what] += not one.wrong
    for template in dict.fromkeys([*(one.template for one in found), "in all"]):
        told = (
            f"{what} {right[key]} of {n}" for key, n in all.items() if key[0] == template for what in key[1:]
        )
        yield f"{template}: {', '.join(told)}"
