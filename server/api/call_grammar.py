"""Grammars of replies that call tools, in llguidance's dialect of Lark.

Arguments are written as json.dumps writes them: models are trained with that, and chat templates show calls
that way. In free text, a call is constrained from its mark on."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from server.llama.backend import Vocabulary
from server.text.detokenize import control_tokens
from server.text.form import HERMES, Form

_STYLE = {"x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}}
_TERMINALS = ["TEXT: /(?s:.+)/", r"BLANK: /[ \n]{1,4}/"]


@dataclass(frozen=True, slots=True)
class Function:
    """parameters: JSON schema of the arguments."""

    name: str
    parameters: Mapping[str, Any]


def required_calls(vocabulary: Vocabulary, form: Form, functions: Sequence[Function]) -> str:
    """A reply that is one call or more and nothing else."""
    writer = _Writer(vocabulary, form)
    return writer.grammar(writer.sequence, writer.calls(functions))


def calls_or_answer(
    vocabulary: Vocabulary, form: Form, functions: Sequence[Function], answer: Mapping[str, Any]
) -> str:
    """Calls, or JSON that fits the schema."""
    writer = _Writer(vocabulary, form)
    rules = [*writer.calls(functions), f"answer: {_json(answer)}"]
    return writer.grammar(f"({writer.sequence} | answer)", rules)


def answer_after_thoughts(vocabulary: Vocabulary, form: Form, answer: Mapping[str, Any]) -> str:
    """JSON that fits the schema, with thoughts in front."""
    return _Writer(vocabulary, form).grammar("answer", [f"answer: {_json(answer)}"])


def calls_in_text(vocabulary: Vocabulary, form: Form, functions: Sequence[Function]) -> str | None:
    """Free text with calls in it. None if no mark begins a call: then nothing can be constrained."""
    assert form.syntax
    if form.syntax.bare:
        return None
    writer = _Writer(vocabulary, form)
    body = "(marked | TEXT)?" if form.most_calls == 1 else "marked* TEXT?"
    return writer.grammar(body, [*writer.calls(functions), *writer.marked_calls()])


def no_calls(vocabulary: Vocabulary, form: Form) -> str | None:
    """Free text without calls. None if no mark begins a call."""
    assert form.syntax
    if form.syntax.bare:
        return None
    writer = _Writer(vocabulary, form)
    return writer.grammar("SILENT?", [writer.silence()])


class _Writer:
    def __init__(self, vocabulary: Vocabulary, form: Form) -> None:
        self._vocabulary = vocabulary
        self._form = form
        self._syntax = form.syntax or HERMES  # which matters where there are calls only
        self._several = form.most_calls != 1

    def grammar(self, body: str, rules: Sequence[str]) -> str:
        thoughts = self._thoughts()
        head = "" if not thoughts else "thoughts BLANK? " if self._form.thinking else "(thoughts BLANK?)? "
        return "\n".join([f"start: {head}{body}", *thoughts, *rules, *_TERMINALS])

    @property
    def sequence(self) -> str:
        """One call, or several where that is allowed, with their marks."""
        begin, between, end = self._around()
        more = f" ({between} call)*" if self._several else ""
        return f"{begin} call{more} {end}"

    def calls(self, functions: Sequence[Function]) -> list[str]:
        """Rules of calls, without marks."""
        names = " | ".join(f"call_{i}" for i in range(len(functions)))
        rules = [f"call: {names}"]
        for i, function in enumerate(functions):
            before, after = self._about(function.name)
            rules.append(f"call_{i}: {before} {_json(function.parameters)} {after}")
        return rules

    def marked_calls(self) -> list[str]:
        """Rules for text up to a mark and the calls after it."""
        begin, _, end = self._around(opened=True)
        many = self._several and self._syntax.array
        more = f" ({_literal(', ')} call)*" if many else ""
        return [*self._until("upto", self._syntax.opens), f"marked: upto {begin} call{more} {end}"]

    def silence(self) -> str:
        """Text without the mark. A mark that is a control token is in no text."""
        opens = self._syntax.opens
        if control_tokens(self._vocabulary, [opens]):
            return "SILENT: TEXT"
        return f"SILENT: TEXT & ~/(?s:.*{re.escape(opens).replace('/', chr(92) + '/')}.*)/"

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


def _json(schema: Mapping[str, Any]) -> str:
    return f"%json {json.dumps({**schema, **_STYLE})}"


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
