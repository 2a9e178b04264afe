"""Grammars of replies that call tools, in llguidance's dialect of Lark.

Arguments are written as json.dumps writes them: models are trained with that, and chat templates show calls
that way. In free text, a call is constrained from its mark on."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from server.grammar.json_schema import Schema
from server.llama.backend import Vocabulary
from server.text.detokenize import control_tokens
from server.text.form import HERMES, Form

_STYLE = {"x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}}
_TERMINALS = ["TEXT: /(?s:.+)/", r"BLANK: /[ \n]{1,4}/"]


class CallGrammar:
    """Grammars of replies in one form. functions: JSON schemas of their arguments by name."""

    def __init__(self, vocabulary: Vocabulary, form: Form) -> None:
        self._vocabulary = vocabulary
        self._form = form
        self._syntax = form.syntax or HERMES  # which matters where there are calls only
        self._several = form.most_calls != 1

    def required(self, functions: Mapping[str, Schema]) -> str:
        """A reply that is one call or more and nothing else."""
        return self._grammar(self._sequence, self._calls(functions))

    def calls_or_answer(self, functions: Mapping[str, Schema], answer: Schema) -> str:
        """Calls, or JSON that fits the schema."""
        rules = [*self._calls(functions), f"answer: {_json(answer)}"]
        return self._grammar(f"({self._sequence} | answer)", rules)

    def answer(self, answer: Schema) -> str:
        """JSON that fits the schema, with thoughts in front."""
        return self._grammar("answer", [f"answer: {_json(answer)}"])

    def calls_in_text(self, functions: Mapping[str, Schema]) -> str | None:
        """Free text with calls in it. None if no mark begins a call: then nothing can be constrained."""
        if self._syntax.bare:
            return None
        body = "marked* TEXT?" if self._several else "(marked | TEXT)?"
        return self._grammar(body, [*self._calls(functions), *self._marked_calls()])

    def no_calls(self) -> str | None:
        """Free text without the mark of a call. None if no mark begins one. A mark that is a control token is
        in no text."""
        opens = self._syntax.opens
        if self._syntax.bare:
            return None
        if control_tokens(self._vocabulary, [opens]):
            return self._grammar("TEXT?", [])
        spelled = re.escape(opens).replace("/", chr(92) + "/")
        return self._grammar("SILENT?", [f"SILENT: TEXT & ~/(?s:.*{spelled}.*)/"])

    def _grammar(self, body: str, rules: Sequence[str]) -> str:
        thoughts = self._thoughts()
        head = "" if not thoughts else "thoughts BLANK? " if self._form.thinking else "(thoughts BLANK?)? "
        return "\n".join([f"start: {head}{body}", *thoughts, *rules, *_TERMINALS])

    @property
    def _sequence(self) -> str:
        """One call, or several where that is allowed, with their marks."""
        begin, between, end = self._around()
        more = f" ({between} call)*" if self._several else ""
        return f"{begin} call{more} {end}"

    def _calls(self, functions: Mapping[str, Schema]) -> list[str]:
        """Rules of calls, without marks."""
        names = " | ".join(f"call_{i}" for i in range(len(functions)))
        rules = [f"call: {names}"]
        for i, (name, schema) in enumerate(functions.items()):
            before, after = self._about(name)
            rules.append(f"call_{i}: {before} {_json(schema)} {after}")
        return rules

    def _marked_calls(self) -> list[str]:
        """Rules for text up to a mark and the calls after it."""
        begin, _, end = self._around(opened=True)
        many = self._several and self._syntax.array
        more = f" ({_literal(', ')} call)*" if many else ""
        return [*self._until("upto", self._syntax.opens), f"marked: upto {begin} call{more} {end}"]

    def _around(self, *, opened: bool = False) -> tuple[str, str, str]:
        """What stands before the first call, between two calls, and after the last. opened: the first mark
        has been written."""
        opens, close = self._syntax.opens, self._syntax.close
        first = () if opened else (opens,)
        match self._syntax.family:
            case "hermes":
                between = self._spelled("\n", close, "\n", opens, "\n")
                return self._spelled(*first, "\n"), between, self._spelled("\n", close)
            case "functionary":
                return self._spelled(*first), self._spelled(close, opens), self._spelled(close)
            case "llama3":
                return "", _literal("; "), ""
            case "mistral" if self._syntax.array:
                return f"{self._spelled(*first)} BLANK? {_literal('[')}", _literal(", "), _literal("]")
            case "mistral":
                return self._spelled(*first), self._spelled(opens), ""

    def _about(self, name: str) -> tuple[str, str]:
        """What stands before and after the arguments of a call."""
        match self._syntax.family:
            case "functionary":
                return _literal(f"{name}>"), ""
            case "mistral" if not self._syntax.array:
                return self._spelled(name, "[ARGS]"), ""
            case _:
                # word by word, as JSON is read: longest match would take one long word for the only way
                words = "{", '"name"', ": ", json.dumps(name), ", ", f'"{self._syntax.arguments}"', ": "
                return " ".join(map(_literal, words)), _literal("}")

    def _thoughts(self) -> list[str]:
        tags = self._form.tags
        if tags is None:
            return []
        begin = "" if self._form.thinking else self._spelled(tags.open)
        return [*self._until("thought", tags.close), f"thoughts: {begin} thought"]

    def _until(self, name: str, mark: str) -> list[str]:
        """A rule for text that ends with a mark."""
        spelled = self._spelled(mark)
        if spelled.startswith("<["):
            return [f"{name}: TEXT? {spelled}"]
        return [f"{name}[lazy]: /(?s:.*)/ {spelled}"]

    def _spelled(self, *texts: str) -> str:
        """The texts in sequence: control tokens by id, the rest as literals."""
        spelled: list[str] = []
        literal = ""
        for text in texts:
            tokens = control_tokens(self._vocabulary, [text])
            if not tokens:
                literal += text
                continue
            if literal:
                spelled.append(_literal(literal))
            spelled.append(f"<[{next(iter(tokens))}]>")
            literal = ""
        return " ".join([*spelled, _literal(literal)] if literal else spelled)


def _json(schema: Schema) -> str:
    return f"%json {json.dumps({**schema, **_STYLE})}"


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
