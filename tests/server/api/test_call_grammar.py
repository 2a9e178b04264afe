"""Grammars of replies that call tools: they let through what models of a family write, and nothing else."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from server.api.call_grammar import CallGrammar
from server.grammar.compiler import Compiler
from server.text.form import (
    FUNCTIONARY,
    HERMES,
    LLAMA3,
    MISTRAL,
    MISTRAL_ARGS,
    THINKING,
    CallSyntax,
    Form,
)
from server.text.message import folded
from server.text.reading import MessageReader
from tests.fake_backend import IM_END, FakeVocabulary
from tests.server.text.vocabularies import MarkedVocabulary

NUMBER = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
FUNCTIONS = {"f": NUMBER, "g": {"type": "object"}}
ARGUMENTS = '{"a": 1}'
CALLS: dict[CallSyntax, tuple[str, str]] = {
    HERMES: (
        '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g", "arguments": {"a": 1}}\n</tool_call>',
    ),
    LLAMA3: (
        '{"name": "f", "parameters": {"a": 1}}',
        '{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {"a": 1}}',
    ),
    MISTRAL: (
        '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}]',
        '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {"a": 1}}]',
    ),
    MISTRAL_ARGS: ('[TOOL_CALLS]f[ARGS]{"a": 1}', '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{"a": 1}'),
    FUNCTIONARY: (
        '<function=f>{"a": 1}</function>',
        '<function=f>{"a": 1}</function><function=g>{"a": 1}</function>',
    ),
}
"""Of each family a call, and two."""
THOUGHTS = {"no": ("", None, False), "some": ("<think>\nhm\n</think>\n\n", THINKING[0], False)}
THOUGHTS["begun"] = ("hm\n</think>\n", THINKING[0], True)
VOCABULARIES = {"bytes": FakeVocabulary(), "marks": MarkedVocabulary()}

every = pytest.mark.parametrize(
    ("syntax", "thoughts", "vocabulary"),
    list(itertools.product(CALLS, THOUGHTS, VOCABULARIES)),
    ids=lambda value: value.family if isinstance(value, CallSyntax) else value,
)


class Scene:
    """One family, vocabulary and way to think."""

    def __init__(self, syntax: CallSyntax, thoughts: str, vocabulary: str) -> None:
        self.before, tags, thinking = THOUGHTS[thoughts]
        self.vocabulary = VOCABULARIES[vocabulary]
        self.form = Form(tags, thinking, syntax, frozenset({"f", "g"}))
        self.grammar = CallGrammar(self.vocabulary, self.form)
        self.single = CallGrammar(self.vocabulary, replace(self.form, most_calls=1))
        self.one, self.two = CALLS[syntax]

    def lets(self, lark: str, text: str) -> bool:
        """Whether a reply may be this, thoughts before it."""
        state = Compiler(self.vocabulary).lark(lark, "tools")()
        for token in [*self.vocabulary.tokenize(self.before + text, special=True), IM_END]:
            if not state.allows(token):
                return False
            state.accept(token)
        return True


@every
def test_a_call_is_required(syntax: CallSyntax, thoughts: str, vocabulary: str):
    scene = Scene(syntax, thoughts, vocabulary)
    lark = scene.grammar.required(FUNCTIONS)
    assert scene.lets(lark, scene.one)
    assert scene.lets(lark, scene.two)
    assert not scene.lets(lark, "")
    assert not scene.lets(lark, "Hello")
    assert not scene.lets(lark, scene.one + " Hello")
    assert not scene.lets(lark, scene.one.replace("1", "true"))
    assert not scene.lets(lark, scene.one.replace("f", "h"))
    assert not scene.lets(scene.single.required(FUNCTIONS), scene.two)
    assert scene.lets(scene.single.required(FUNCTIONS), scene.one)


@every
def test_calls_in_text_are_made_to_fit(syntax: CallSyntax, thoughts: str, vocabulary: str):
    scene = Scene(syntax, thoughts, vocabulary)
    lark = scene.grammar.calls_in_text(FUNCTIONS)
    if syntax.bare:
        assert lark is None
        return
    assert lark is not None
    for text in ("", "Hello <b> [T {", scene.one, scene.two, "Hello " + scene.two, scene.one + "\nHello"):
        assert scene.lets(lark, text), text
    for text in (scene.one.replace("1", "true"), "Hello " + scene.one.replace('"a"', '"b"')):
        assert not scene.lets(lark, text), text
    single = scene.single.calls_in_text(FUNCTIONS)
    assert single
    assert scene.lets(single, "Hello" + scene.one)
    assert not scene.lets(single, scene.two)


@every
def test_calls_or_an_answer_in_a_form(syntax: CallSyntax, thoughts: str, vocabulary: str):
    scene = Scene(syntax, thoughts, vocabulary)
    answer = {"type": "object", "properties": {"b": {"type": "boolean"}}, "additionalProperties": False}
    lark = scene.grammar.calls_or_answer(FUNCTIONS, answer)
    assert scene.lets(lark, scene.two)
    assert scene.lets(lark, '{"b": true}')
    assert not scene.lets(lark, '{"b": 1}')
    assert not scene.lets(lark, "Hello")


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("thoughts", ["some", "begun"])
def test_an_answer_in_a_form_may_be_thought_about(thoughts: str, vocabulary: str):
    scene = Scene(HERMES, thoughts, vocabulary)
    form = Form(scene.form.tags, scene.form.thinking)
    lark = CallGrammar(scene.vocabulary, form).answer(NUMBER)
    assert scene.lets(lark, '{"a": 1}')
    assert not scene.lets(lark, '{"a": true}')
    assert not scene.lets(lark, "Hello")
    assert not scene.lets(lark, '{"a": 1} Hello')


@every
def test_what_is_let_through_is_read(syntax: CallSyntax, thoughts: str, vocabulary: str):
    scene = Scene(syntax, thoughts, vocabulary)
    reader = MessageReader(scene.form)
    message = folded(reader.feed(scene.before + scene.two) + reader.end())
    assert [(call.name, call.arguments) for call in message.calls] == [("f", ARGUMENTS), ("g", ARGUMENTS)]
    assert not message.content
    assert message.reasoning == ("hm" if thoughts != "no" else "")


def test_what_must_follow_is_known_in_advance():
    vocabulary = MarkedVocabulary()
    form = Form(syntax=HERMES, names=frozenset({"f"}), most_calls=1)
    state = Compiler(vocabulary).lark(CallGrammar(vocabulary, form).required({"f": NUMBER}), "tools")()
    text = b"".join(vocabulary.piece(token, special=True) for token in state.forced())
    assert text.startswith(b'<tool_call>\n{"name": "f", "arguments": {"a": ')


@every
def test_no_call_begins(syntax: CallSyntax, thoughts: str, vocabulary: str):
    scene = Scene(syntax, thoughts, vocabulary)
    lark = scene.grammar.no_calls()
    assert (lark is None) == syntax.bare
    if lark is not None:
        assert scene.lets(lark, "")
        assert scene.lets(lark, "Hello <b> [T {")
        assert not scene.lets(lark, scene.one)
        assert not scene.lets(lark, "Hello " + scene.two)
