"""Grammars of replies that call tools: they let through what models of a family write, and nothing else."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest

from server.api.call_grammar import CallGrammar
from server.formats.families import FAMILIES
from server.formats.reading import MessageReader
from server.formats.spelling import written
from server.grammar.compiler import Compiler
from server.text.message import folded
from server.text.reply_format import ReplyFormat
from tests.fake_backend import IM_END, FakeVocabulary
from tests.server.formats.replies import FUNCTIONS, REPLIES, TEXT, F, Reply
from tests.server.text.vocabularies import MarkedVocabulary

NUMBER = FUNCTIONS["f"]
VOCABULARIES = {"bytes": FakeVocabulary(), "marks": MarkedVocabulary()}
COMPILERS = {name: Compiler(vocabulary) for name, vocabulary in VOCABULARIES.items()}  # which keep grammars
THOUGHTS = ("no", "some", "begun")
BY_FAMILY = {reply.family: reply for reply in REPLIES}
NO_JSON = ("parameters", "python", "gemma")
WRITABLE = [
    reply
    for reply, family in zip(REPLIES, FAMILIES, strict=True)
    if family.calls and not family.channels and family.calls.arguments in NO_JSON
]
"""Families whose arguments are no JSON."""
SINGLE = ("harmony",)
"""Families whose replies end with a call."""

every = pytest.mark.parametrize(
    ("reply", "thoughts", "vocabulary"),
    [
        one
        for one in itertools.product(REPLIES, THOUGHTS, VOCABULARIES)
        if one[1] == "no" or (one[0].form.thoughts and not one[0].form.channels)
    ],
    ids=lambda value: value.family if isinstance(value, Reply) else value,
)


class Scene:
    """One family, vocabulary and way to think."""

    def __init__(self, reply: Reply, thoughts: str, vocabulary: str) -> None:
        form = reply.form
        tags = form.thoughts
        self.before = ""
        if tags and thoughts != "no":
            self.before = ("" if thoughts == "begun" else tags.open) + f"hm\n{tags.close}\n"
        self.vocabulary, self._compiler = VOCABULARIES[vocabulary], COMPILERS[vocabulary]
        self.form = replace(form, thoughts=None if thoughts == "no" else tags, thinking=thoughts == "begun")
        self.grammar = CallGrammar(self.vocabulary, self.form)
        self.single = CallGrammar(self.vocabulary, replace(self.form, most_calls=1))
        self.one, self.two = reply.one, reply.two
        self.several = reply.family not in SINGLE

    def lets(self, lark: str, text: str) -> bool:
        """Return True if the reply may be `text`, with thoughts before it."""
        state = self._compiler.lark(lark, "tools")()
        for token in [*self.vocabulary.tokenize(self.before + text, special=True), IM_END]:
            if not state.allows(token):
                return False
            state.accept(token)
        return True


@every
def test_a_call_is_required(reply: Reply, thoughts: str, vocabulary: str):
    scene = Scene(reply, thoughts, vocabulary)
    lark = scene.grammar.required(FUNCTIONS)
    assert scene.lets(lark, scene.one)
    assert scene.lets(lark, scene.two) == scene.several
    assert not scene.lets(lark, "")
    assert not scene.lets(lark, "Hello")
    assert not scene.lets(lark, scene.one + " Hello")
    assert not scene.lets(lark, scene.one.replace("1", "true"))
    assert not scene.lets(lark, scene.one.replace("f", "h"))
    assert not scene.lets(scene.single.required(FUNCTIONS), scene.two)
    assert scene.lets(scene.single.required(FUNCTIONS), scene.one)


@every
def test_calls_in_text_are_made_to_fit(reply: Reply, thoughts: str, vocabulary: str):
    scene = Scene(reply, thoughts, vocabulary)
    lark = scene.grammar.calls_in_text(FUNCTIONS)
    if lark is None or scene.grammar.calls.bare or reply.form.channels:  # tested below
        assert reply.form.channels or lark is not None
        return
    for text in ("", "Hello <b> [T {", scene.one, scene.two, "Hello " + scene.two, scene.one + "\nHello"):
        assert scene.lets(lark, text), text
    for text in (scene.one.replace("1", "true"), "Hello " + scene.one.replace("1", '"b"')):
        assert not scene.lets(lark, text), text
    single = scene.single.calls_in_text(FUNCTIONS)
    assert single
    assert scene.lets(single, "Hello" + scene.one)
    assert not scene.lets(single, scene.two)


@every
def test_calls_or_an_answer_in_a_form(reply: Reply, thoughts: str, vocabulary: str):
    scene = Scene(reply, thoughts, vocabulary)
    answer = {"type": "object", "properties": {"b": {"type": "boolean"}}, "additionalProperties": False}
    lark = scene.grammar.calls_or_answer(FUNCTIONS, answer)
    assert scene.lets(lark, scene.one)
    begin = scene.form.channels.content if scene.form.channels else ""
    assert scene.lets(lark, begin + '{"b": true}')
    assert not scene.lets(lark, begin + '{"b": 1}')
    assert not scene.lets(lark, "Hello")


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("thoughts", ["some", "begun"])
def test_thoughts_precede_a_structured_answer(thoughts: str, vocabulary: str):
    scene = Scene(BY_FAMILY["json in tags"], thoughts, vocabulary)
    form = ReplyFormat(scene.form.thoughts, scene.form.thinking)
    lark = CallGrammar(scene.vocabulary, form).answer(NUMBER)
    assert scene.lets(lark, '{"a": 1}')
    assert not scene.lets(lark, '{"a": true}')
    assert not scene.lets(lark, "Hello")
    assert not scene.lets(lark, '{"a": 1} Hello')


@every
def test_allowed_calls_are_read(reply: Reply, thoughts: str, vocabulary: str):
    scene = Scene(reply, thoughts, vocabulary)
    reader = MessageReader(scene.form)
    message = folded(reader.feed(scene.before + scene.two) + reader.end())
    assert [call.name for call in message.calls] == ["f", "g" if scene.several else "f"]
    assert message.calls[0].arguments == F
    assert not message.content
    assert message.reasoning == ("hm" if thoughts != "no" else "")


def test_forced_text_is_known_early():
    vocabulary = MarkedVocabulary()
    form = ReplyFormat(calls=BY_FAMILY["json in tags"].form.calls, functions={"f": NUMBER}, most_calls=1)
    state = Compiler(vocabulary).lark(CallGrammar(vocabulary, form).required({"f": NUMBER}), "tools")()
    text = b"".join(vocabulary.piece(token, special=True) for token in state.forced())
    assert text.startswith(b'<tool_call>\n{"name": "f", "arguments": {"a": ')


@every
def test_no_call_begins(reply: Reply, thoughts: str, vocabulary: str):
    scene = Scene(reply, thoughts, vocabulary)
    lark = scene.grammar.no_calls()
    assert (lark is None) == bool(reply.form.channels or reply.family == "llama 3")
    if lark is not None:
        assert scene.lets(lark, "")
        assert scene.lets(lark, "Hello <b> [T {")
        assert not scene.lets(lark, scene.one)
        assert not scene.lets(lark, "Hello " + scene.two)


FREE = {"f": {"type": "object"}}
SHARED = {
    "f": {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/one"}},
        "required": ["a"],
        "$defs": {"one": {"const": 1}},
    }
}


@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: reply.family)
def test_empty_and_recursive_schemas_hold(reply: Reply):
    scene = Scene(reply, "no", "bytes")
    if reply.family != "minimax m3":
        assert scene.lets(scene.grammar.required(FREE), scene.one)
    assert scene.lets(scene.grammar.required(SHARED), scene.one)


@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: reply.family)
def test_call_may_end_unclosed_thoughts(reply: Reply):
    scene = Scene(reply, "begun", "bytes")
    calls = scene.grammar.calls
    if reply.form.thoughts and calls.markers and not (calls.bare or reply.form.channels):
        scene.before = "hm\n"
        lark = scene.grammar.calls_in_text(FUNCTIONS)
        assert lark
        assert scene.lets(lark, scene.one)
        assert not scene.lets(lark, scene.one.replace("1", "true"))


@pytest.mark.parametrize("family", ["harmony", "muse"])
def test_channel_message_is_a_call(family: str):
    scene = Scene(BY_FAMILY[family], "no", "marks")
    lark = scene.grammar.calls_in_text(FUNCTIONS)
    assert lark
    channels = scene.form.channels
    assert channels
    said = f"{channels.content}Hello, to=f{channels.ends[0]}{channels.start}"
    for text in ("", channels.content + "Hello <b> to=functions.f {", scene.one, said + scene.one, scene.two):
        assert scene.lets(lark, text), text
    for text in (scene.one.replace("1", "true"), said + scene.one.replace("1", '"b"')):
        assert not scene.lets(lark, text), text
    other = scene.one.replace("f", "h") if family == "muse" else scene.one.replace("functions.f", "browser.f")
    assert scene.lets(lark, other.replace("1", "true")), "nobody's call"


def test_function_header_makes_a_call():
    scene = Scene(BY_FAMILY["functionary 3.2"], "no", "bytes")
    lark = scene.grammar.calls_in_text(FUNCTIONS)
    assert lark
    for text in (
        "",
        scene.one,
        scene.two,
        "all\nHello >>> f",
        "all\nHello>>>" + scene.one,
        "fine\n{",
        "f",
        "h\n{x",
    ):
        assert scene.lets(lark, text), text
    for text in (scene.one, "all\nHello>>>" + scene.one):
        assert not scene.lets(lark, text.replace("1", "true")), text


def test_nested_elements_are_held():
    pair = {
        "type": "object",
        "properties": {"a": {"type": "string"}, "n": {"type": "integer"}},
        "required": ["n"],
    }
    listed = {"type": "array", "items": pair}
    functions = {"f": {"type": "object", "properties": {"v": listed}, "required": ["v"]}}
    scene = Scene(BY_FAMILY["minimax m3"], "no", "bytes")
    scene.form = replace(scene.form, functions=functions)
    m = "]<]minimax[>["

    def call(inner: str) -> str:
        return scene.one.replace(f"{m}<a>1{m}</a>", f"{m}<v>{inner}{m}</v>")

    def item(inner: str) -> str:
        return f"{m}<item>{inner}{m}</item>"

    right = item(f"{m}<a>x <b>{m}</a>{m}<n>1{m}</n>") + item(f"{m}<n>2{m}</n>")
    message = folded([*(reader := MessageReader(scene.form)).feed(call(right)), *reader.end()])
    assert json.loads(message.calls[0].arguments) == {"v": [{"a": "x <b>", "n": 1}, {"n": 2}]}
    free = scene.grammar.calls_in_text(functions)
    assert free
    for lark in (free, scene.grammar.required(functions)):
        assert scene.lets(lark, call(right))
        assert scene.lets(lark, call(""))
        assert not scene.lets(lark, call(item(f"{m}<n>x{m}</n>")))
        assert not scene.lets(lark, call(item(f"{m}<a>x{m}</a>")))
        assert not scene.lets(lark, call(item(f"{m}<z>1{m}</z>")))


VALUES: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "null or text": ({"type": ["string", "null"]}, [None, "it"]),
    "a number or text": ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, [5, "5a"]),
    "anything": ({}, ["free", {"x": 1}, 7, False]),
    "few": ({"enum": ["blue", "red one"]}, ["red one"]),
    "an object": ({"type": "object"}, [{}, {"k": {"l": [{"m": [True, None, "s"]}]}}]),
    "lists": (
        {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
        [[], [[1, 2.5], [-3]]],
    ),
}


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("reply", WRITABLE, ids=lambda reply: reply.family)
def test_values_of_all_types_pass(reply: Reply, kind: str):
    schema, values = VALUES[kind]
    functions = {"f": {"type": "object", "properties": {"v": schema}, "required": ["v"]}}
    scene = Scene(reply, "no", "bytes")
    scene.form = replace(scene.form, functions=functions)
    for value in values:
        call = {"id": "abcdefgh1", "function": {"name": "f", "arguments": json.dumps({"v": value})}}
        text = written([call], scene.grammar.calls)
        reader = MessageReader(scene.form)
        message = folded([*reader.feed(text), *reader.end()])
        assert [json.loads(one.arguments) for one in message.calls] == [{"v": value}]
        assert scene.lets(scene.grammar.required(functions), text), text
        free = scene.grammar.calls_in_text(functions)
        assert free is None or scene.lets(free, text), text


def test_tagged_text_has_schema_length():
    for family in ("function tags", "glm", "gemma 4", "minicpm 5", "kimi k3"):
        for vocabulary in VOCABULARIES:
            scene = Scene(BY_FAMILY[family], "no", vocabulary)
            text = {"type": "string", "maxLength": len(TEXT)}
            schema = {
                "type": "object",
                "properties": {"s": text, "b": {"type": "boolean"}},
                "required": ["s"],
            }
            functions = {"f": NUMBER, "g": schema}
            for lark in (scene.grammar.required(functions), scene.grammar.calls_in_text(functions)):
                assert lark
                assert scene.lets(lark, scene.two)
                assert not scene.lets(lark, scene.two.replace(TEXT, TEXT + "x"))


def test_one_line_break_surrounds_short_values():
    """A second line break would be a part of the value."""
    grammar = CallGrammar(FakeVocabulary(), BY_FAMILY["function tags"].form)
    schema = {**FUNCTIONS["g"], "properties": {"s": {"enum": ["x", "y"]}}}
    reply = "<tool_call>\n<function=g>\n<parameter=s>{}x{}</parameter>\n</function>\n</tool_call>"
    for lark in (grammar.required({"g": schema}), grammar.calls_in_text({"g": schema})):
        assert lark
        for before, after in itertools.product(("", "\n", "\n\n", " "), repeat=2):
            state = Compiler(FakeVocabulary()).lark(lark, "tools")()
            let = True
            for token in FakeVocabulary().tokenize(reply.format(before, after), special=True):
                let = let and state.allows(token)
                state.accept(token)
            assert let == (before in ("", "\n") and after in ("", "\n")), (before, after)


BARE = [
    '{"name": "f", "parameters": {"a": 1}}',
    '\n{"name":"f","parameters":{"a":1}}',
    BY_FAMILY["llama 3"].two,
]
NO_CALL = [
    "",
    "Hello {",
    '{"a": 1}',
    '{"name": "x"}',
    '{"name": "f"}',
    '{"name": "f", "b": 1}',
    '{"name": "ff", "x": 1}',
    'See {"name": "f", "parameters": 3}',
    '{"type": "function", "name": "f"}',
]
MISFIT = ['{"name": "f", "parameters": {"a": "1"}}', '{"name": "g", "parameters": {}}']


@pytest.mark.parametrize("thoughts", ["no", "begun"])
def test_unmarked_calls_hold_at_reply_start(thoughts: str):
    scene = Scene(BY_FAMILY["llama 3"], thoughts, "bytes")
    lark = scene.grammar.calls_in_text(FUNCTIONS)
    assert lark
    assert [text for text in (*BARE, *NO_CALL, *MISFIT) if not scene.lets(lark, text)] == MISFIT
    single = scene.single.calls_in_text(FUNCTIONS)
    assert single
    assert [scene.lets(single, text) for text in BARE] == [True, True, False]
