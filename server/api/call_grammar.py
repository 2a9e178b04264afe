"""Write grammars of replies with tool calls in a model family's syntax, in llguidance's dialect of Lark.

A required call is written exactly as chat templates show calls, so the grammar can force most of its tokens.
In free text, a call must fit its function's schema from the call's marker on. There the model chooses white
space and the order of parameters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from server.api.argument_grammar import ArgumentGrammar
from server.api.grammar_rules import spelled_in_regex
from server.formats.description import ARGUMENTS, SLOT, Channels, tokens_in
from server.formats.families import UNKNOWN
from server.formats.json_call import ARGUMENTS_KEYS, ID_KEYS
from server.grammar.schema_form import Schema
from server.llama.backend import Vocabulary
from server.text.reply_format import ReplyFormat

_ID = "/[A-Za-z0-9]{9}/"
"""Regex for call ids: nine letters or digits, as Mistral's templates demand; other templates take any."""

_WITH_ID = re.compile(r"⟦[^⟧]*⟨id⟩⟧")
"""The optional part of a call that contains an id."""

_CONSTRAIN = "<|constrain|>"
"""gpt-oss's control token in a message's header, before the format of the message's body."""


class CallGrammar(ArgumentGrammar):
    """Makes grammars of replies with or without calls, for one reply format."""

    def __init__(self, vocabulary: Vocabulary, form: ReplyFormat) -> None:
        calls = form.calls or UNKNOWN.calls
        assert calls
        super().__init__(vocabulary, calls)
        self._form = form
        between = calls.each or calls.between or calls.open or calls.call.startswith("[")
        self._several = form.most_calls != 1 and (bool(between) or not form.channels)

    def required(self, functions: Mapping[str, Schema]) -> str:
        """Return a grammar of replies that are one or more calls and nothing else.

        Args:
            functions: Schemas of arguments, by function name.
        """
        self.begin(loose=False)
        return self._join_rules(self._calls_expression(), self._call_rules(functions))

    def one_call(self, name: str, schema: Schema) -> str:
        """Return a grammar of replies that only call the function `name` with arguments that fit `schema`."""
        return self.required({name: schema})

    def calls_or_answer(self, functions: Mapping[str, Schema], answer: Schema | str) -> str:
        """Return a grammar of replies that consist of either calls or an answer.

        Args:
            functions: Schemas of arguments, by function name.
            answer: What the answer must fit: a JSON schema, or a Lark expression.
        """
        self.begin(loose=False)
        rules = [*self._call_rules(functions), self._answer_rule(answer)]
        return self._join_rules(f"({self._calls_expression()} | {self._answer_expression()})", rules)

    def answer(self, answer: Schema | str) -> str:
        """Return a grammar of replies without calls that fit `answer`, a JSON schema or a Lark expression."""
        self.begin(loose=False)
        return self._join_rules(self._answer_expression(), [self._answer_rule(answer)])

    def _answer_rule(self, answer: Schema | str) -> str:
        return f"answer: {answer if isinstance(answer, str) else self.json(answer)}"

    def calls_in_text(self, functions: Mapping[str, Schema]) -> str | None:
        """Return a grammar of free text with calls; None if no marker shows where a call begins."""
        if self.calls.bare:
            return self._bare_in_text(functions)
        if channels := self._form.channels:
            address = channels.header.partition("⟨name⟩")[0].strip()
            in_text = self._addressed_in_text if address else self._headed_in_text
            return in_text(channels, functions)
        if not self._marker:
            return None
        self.begin(loose=True)
        body = "marked* free_text" if self._several else "(marked | free_text)"
        calls, rules = self.calls, self._call_rules(functions)
        between = self.written(calls.between)
        begin, close = self.written(self._text_after_marker), self.written(calls.close)
        if calls.each or not calls.open:
            marked = f"marked: upto {begin} call {close}"
        else:
            more = f" ({between} call)*" if self._several else ""
            marked = f"marked: upto {begin} call{more} {close}"
        return self._join_rules(
            body, [*rules, self.until("upto", self._marker), marked, self._free_text_rule()]
        )

    def _bare_in_text(self, functions: Mapping[str, Schema]) -> str:
        """Return a grammar of replies that are calls, or text that does not begin like a call.

        It is for families whose calls need no marker.
        """
        self.begin(loose=True)
        naming, giving = self.calls.members
        rules, heads = list[str](), list[str]()
        for i, (name, schema) in enumerate(functions.items()):
            spelled = spelled_in_regex(name)
            words = ["", r"\{", f'"{naming}"', ":", f'"{spelled}"', ",", f'"{giving}"', ":"]
            heads.append(r"[ \n]{0,8}".join(words))
            rules.append(f'call_{i}: HEAD_{i} BLANK? {self.json(schema)} BLANK? "}}"')
            rules.append(f"HEAD_{i}: /{heads[i]}/")
        rules.append(f"OTHER: TEXT & ~/(?s:({'|'.join(heads)}).*)/")
        rules.append(f"call: {' | '.join(f'call_{i}' for i in range(len(functions)))}")
        marker = self.control(self.calls.open)
        tag = "" if marker is None else f"<[{marker}]>? "
        more = f" (BLANK? {self.written(self.calls.between.strip())} call)*" if self._several else ""
        return self._join_rules(f"{tag}(call{more} BLANK? | OTHER?)", rules)

    def _addressed_in_text(self, channels: Channels, functions: Mapping[str, Schema]) -> str | None:
        """Return a grammar of messages in which a header with a function's name begins a call.

        Return None if the markers of messages are ordinary tokens, because other text could spell them.
        """
        begin = next(iter(tokens_in(channels.start)), "")
        start, message = self.control(begin), self.control(channels.message)
        if start is None or message is None:
            return None
        address = channels.header.partition("⟨name⟩")[0].strip()
        self.begin(loose=True)
        to = [spelled_in_regex(address + name) for name in functions]
        markers = {*map(self.control, [_CONSTRAIN, *tokens_in(channels.header)])} - {None, message}
        part = f"(({' | '.join(f'<[{one}]>' for one in markers)}) OTHER?)*" if markers else ""
        rules = [f"OTHER: TEXT & ~/(?s:.*({'|'.join(to)})( .*)?)/"]
        for i, (name, schema) in enumerate(functions.items()):
            body = self._call_expression(name, schema, addressed=True)
            rules.append(f"TO_{i}: /(?s:.*{to[i]}( .*)?)/")
            rules.append(f"call_{i}: OTHER? {part} TO_{i} {part} <[{message}]> BLANK? {body}")
        rest = f"{self.tokens_but(start)}*"
        ended = f"(({' | '.join(map(self.written, channels.ends))}) {rest})?" if channels.ends else ""
        rules.append(f"call: ({' | '.join(f'call_{i}' for i in range(len(functions)))}) BLANK? {ended}")
        rules.append(f"other: OTHER? {part} (<[{message}]> {rest})?")
        begun = rest if self._form.headed else "(other | call)"
        return "\n".join([f"start: {begun} (<[{start}]> (other | call))*", *rules, *self.made])

    def _headed_in_text(self, channels: Channels, functions: Mapping[str, Schema]) -> str:
        """Return a grammar of messages in which a header that is a function's name begins a call."""
        self.begin(loose=True)
        rules, marked, begun = list[str](), list[str](), list[str]()
        for i, (name, schema) in enumerate(functions.items()):
            head = channels.header.replace("⟨name⟩", name)
            body = f"BLANK? {self._call_expression(name, schema, addressed=True)} BLANK?"
            rules.append(f"upto_{i}[lazy]: /(?s:.*){spelled_in_regex(channels.start + head)}/")
            rules.append(f"begin_{i}[lazy]: /{spelled_in_regex(head)}/")
            marked.append(f"upto_{i} {body}")
            begun.append(f"begin_{i} {body}")
        rules.append(f"marked: {' | '.join(marked)}")
        first = "" if self._form.headed else f"({' | '.join(begun)})? "
        return "\n".join([f"start: {first}marked* free_text", *rules, self._free_text_rule(), *self.made])

    def no_calls(self) -> str | None:
        """Return a grammar of free text without a call's marker; None if calls have no marker."""
        if not self._marker:
            return None
        self.begin(loose=True)
        if self.control(self._marker) is not None:
            return self._join_rules("free_text", [self._free_text_rule()])
        spelled = spelled_in_regex(self._marker)
        return self._join_rules("SILENT?", [f"SILENT: TEXT & ~/(?s:.*{spelled}.*)/"])

    @property
    def _marker(self) -> str:
        """Return the marker that begins a call in free text, "" if the family has none."""
        bare = self.calls.bare or self._form.channels
        return "" if bare or not self.calls.markers else self.calls.markers[0]

    @property
    def _text_after_marker(self) -> str:
        """Return the text between the marker and the first call's name or object."""
        return (self.calls.open or self._head_marker).lstrip()[len(self._marker) :]

    @property
    def _head_marker(self) -> str:
        """Return the marker if every call begins with it, "" if it only opens the list of calls.

        The rule for the text before a call already matches the marker, so the call's own rule omits it.
        """
        return self._marker if not self.calls.open else ""

    def _free_text_rule(self) -> str:
        """Return the rule of free text up to the reply's end."""
        marker = self.control(self._marker)
        return "free_text: TEXT?" if marker is None else f"free_text: {self.tokens_but(marker)}*"

    def _join_rules(self, body: str, rules: Sequence[str]) -> str:
        thoughts = self._thought_rules()
        must = self._form.thinking and not (self.loose and self._marker)
        head = "" if not thoughts else "thoughts BLANK? " if must else "(thoughts BLANK?)? "
        drops = " | ".join(map(self.written, self._form.drops))
        if drops:  # text that may occur before and after everything else
            rules = [*rules, f"drops: ({drops}){{1,3}}"]
            head, body = f"{head}drops? ", f"{body} drops?"
        return "\n".join([f"start: {head}{body}", *thoughts, *rules, *self.made])

    def _answer_expression(self) -> str:
        """Return the expression for an answer, after the header of its channel if the family has channels."""
        channels = self._form.channels
        return f"{self.written(channels.content)} answer" if channels and not self._form.headed else "answer"

    def _calls_expression(self) -> str:
        """Return the expression for one call, or several where allowed, with their markers."""
        calls = self.calls
        begin, between, end = map(self.written, (calls.open, calls.between, calls.close))
        if calls.bare:
            begin, end = "", ""
        if not between.strip(" ") or not calls.between.strip():
            between = "BLANK?"
        if calls.each:
            more = f" ({between} {begin} call {end})*" if self._several else ""
            return f"{begin} call {end}{more}"
        more = f" ({between} call)*" if self._several else ""
        if self._form.channels:  # a message's end
            end = f"{end} ({' | '.join(map(self.written, self._form.channels.ends)) or 'BLANK'})?"
        return f"{begin} call{more} {end}"

    def _call_rules(self, functions: Mapping[str, Schema]) -> list[str]:
        """Return the rules `call_0`, … for a call of each function, and `call` for any of them."""
        names = " | ".join(f"call_{i}" for i in range(len(functions)))
        rules = [f"call: {names}"]
        for i, (name, schema) in enumerate(functions.items()):
            rules.append(f"call_{i}: {self._call_expression(name, schema)}")
        return rules

    def _call_expression(self, name: str, schema: Schema, *, addressed: bool = False) -> str:
        """Return the expression for a call. If `addressed`, omit the header: another rule contains it."""
        channels = self._form.channels
        header = channels.header if channels and not self._form.headed and not addressed else ""
        text = header + self.calls.call
        if self.loose and self._head_marker:
            text = text.removeprefix(self._head_marker)
        parts = SLOT.split(_WITH_ID.sub("", text).replace("⟦", "").replace("⟧", ""))
        made: list[str] = []
        fixed = ""
        for i, part in enumerate(parts):
            if i % 2 == 0 or part in ("name", "named_id"):
                fixed += part if i % 2 == 0 else name if part == "name" else f"functions.{name}:"
                if part != "named_id":
                    continue
            slot = "/[0-9]{1,3}/" if part in ("named_id", "nth") else _ID if part == "id" else ""
            made += [self.written(fixed), slot or self._arguments_expression(part, name, schema)]
            fixed = ""
        return " ".join(filter(None, [*made, self.written(fixed)]))

    def _arguments_expression(self, slot: str, name: str, schema: Schema) -> str:
        assert slot in ARGUMENTS
        match slot:
            case "json":
                return self.json(schema)
            case "object":
                return self._object_expression(name, schema)
            case _:
                return self.arguments(schema)

    def _object_expression(self, name: str, schema: Schema) -> str:
        """Return the expression for a call as a JSON object, with a literal for each word.

        llguidance's lexer takes the longest match, so one literal for several words would rule out shorter
        literals that begin alike.
        """
        members = list[str]()
        for i, key in enumerate(self.calls.members):
            value = self.json(schema) if key in ARGUMENTS_KEYS else self.written(json.dumps(name))
            if key in ID_KEYS:
                value = '/"[0-9]{1,3}"/' if i == 0 else f'{_ID[:1]}"{_ID[1:-1]}"/'
            words = [", "] * bool(i) + [json.dumps(key), ": "]
            member = " ".join([*map(self.written, words), value])
            members.append(f"({member})?" if key in ID_KEYS and i else member)
        return " ".join([self.written("{"), *members, self.written("}")])

    def _thought_rules(self) -> list[str]:
        thoughts, channels = self._form.thoughts, self._form.channels
        if thoughts is None:
            return []
        begin = "" if self._form.thinking else self.written(thoughts.open)
        again = f" {self.written(channels.start)}" if channels else ""
        stray = "" if self._form.thinking or channels else f" | {self.written(thoughts.close)}"
        return [self.until("thought", thoughts.close), f"thoughts: {begin} thought{again}{stray}"]
