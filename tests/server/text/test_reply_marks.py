"""Where a vocabulary has a token for a mark, only that token is the mark; stop strings end content only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.events import Committed
from server.formats.description import Calls, Channels, Thoughts
from server.formats.families import FUNCTION_TAGS, JSON_IN_TAGS, THINK, family_of
from server.formats.reading import MessageReader
from server.grammar.compiler import Compiler
from server.grammar.thinking_budget import ThinkingBudget, ThoughtLimit
from server.text.detokenize import marker_tokens
from server.text.message import Message, Piece, folded
from server.text.reply import ReplyText, as_read
from server.text.reply_format import PLAIN, ReplyFormat
from tests.fake_backend import IM_END, FakeVocabulary
from tests.server.text.vocabularies import MarkedVocabulary
from tests.templates import HARMONY


class Added(MarkedVocabulary):
    """A vocabulary whose markers are added words and no control tokens, as Qwen's."""

    def piece(self, token: int, *, special: bool = False) -> bytes:
        return super().piece(token, special=token >= FakeVocabulary.size or special)


VOCABULARIES = [MarkedVocabulary(), Added()]
TOOLS: Any = {"f": {"type": "object", "properties": {"a": {"type": "string"}}}}
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "b"}}\n</tool_call>'
QUOTED = ReplyFormat(THINK, calls=JSON_IN_TAGS, functions=TOOLS)


def tokens_of(text: str, vocabulary: MarkedVocabulary) -> list[int]:
    """Return the tokens of a text in which «<mark>» is one token and all else is bytes."""
    tokens = list[int]()
    for i, part in enumerate(text.replace("»", "«").split("«")):
        tokens += [vocabulary.token(part)] if i % 2 else list(part.encode())
    return tokens


def said(
    text: str, form: ReplyFormat, vocabulary: MarkedVocabulary, *, stops: Sequence[str] = (), n_step: int = 1
) -> tuple[Message, ReplyText]:
    reply = ReplyText(vocabulary, MessageReader(form, lambda n: f"id{n}", stops=stops), aligned=True)
    tokens = tokens_of(text, vocabulary)
    pieces = list[Piece]()
    for at in range(0, len(tokens), n_step):
        if not reply.stopped:
            step = tokens[at : at + n_step]
            pieces += reply.feed(Committed(tuple(step), (None,) * len(step)))
    return folded([*pieces, *reply.end("stop")]), reply


@pytest.mark.parametrize("n_step", [1, 7, 1000])
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_a_quoted_mark_is_text(vocabulary: MarkedVocabulary, n_step: int):
    thought = "«<think>»Is it `</think>`?«</think>»"
    message, _ = said(f"{thought}No {CALL} yet", QUOTED, vocabulary, n_step=n_step)
    assert message == Message(f"No {CALL} yet", "Is it `</think>`?")
    real = CALL.replace("<tool_call>", "«<tool_call>»").replace("</tool_call>", "«</tool_call>»")
    message, _ = said(f"{thought}Yes {real}", QUOTED, vocabulary, n_step=n_step)
    assert (message.content, [call.arguments for call in message.calls]) == ("Yes", ['{"a": "b"}'])


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_an_argument_may_spell_marks(vocabulary: MarkedVocabulary):
    spelled = '{"a": "</tool_call> é \\u0041 <think>"}'
    for form, call in (
        (QUOTED, f'«<tool_call>»{{"name": "f", "arguments": {spelled}}}«</tool_call>»'),
        (QUOTED, f'«<tool_call>»{{"arguments": {spelled}, "name": "f"}}«</tool_call>»'),
    ):
        message, _ = said(call, form, vocabulary)
        assert [one.arguments for one in message.calls] == [spelled]


def test_headers_are_those_of_tokens():
    vocabulary = MarkedVocabulary()
    family = family_of(HARMONY)
    form = ReplyFormat(family.thoughts, channels=family.channels, headed=False)
    head = "«<|channel|>»{}«<|message|>»"
    text = f"{head.format('analysis')}<|channel|>final<|message|>x<|start|>assistant"
    message, _ = said(text, form, vocabulary)
    assert message == Message("", "<|channel|>final<|message|>x<|start|>assistant")


def test_textual_marks_are_read():
    message, _ = said(
        "«<think>»a«</think>»<tool_calls>[1]", ReplyFormat(THINK, calls=FUNCTION_TAGS), VOCABULARIES[0]
    )
    assert message == Message("<tool_calls>[1]", "a")
    reply = ReplyText(FakeVocabulary(), MessageReader(ReplyFormat(THINK)))
    tokens = tuple(b"<think>a</think>b")
    assert folded(reply.feed(Committed(tokens, (None,) * len(tokens)))) == Message("b", "a")


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_spans_of_tokens_cover_the_text(vocabulary: MarkedVocabulary):
    _, reply = said("«<think>»</think>«</think>»a<think>b", QUOTED, vocabulary)
    spans = reply.completed(reply.reader.n_parsed)
    assert [span.position for span in spans] == list(range(len(spans)))
    content = [span.position for span in spans if reply.reader.content.has(span.start, span.end)]
    assert content == list(range(10, 10 + len("a<think>b")))


@given(
    st.lists(st.sampled_from(["«<think>»", "</think>", "«</think>»", "a", "</thi", "nk>"])), st.integers(1, 9)
)
def test_steps_do_not_matter(parts: list[str], n_step: int):
    text = "".join(parts)
    assert said(text, QUOTED, VOCABULARIES[0], n_step=n_step)[0] == said(text, QUOTED, VOCABULARIES[0])[0]


def test_reply_reads_the_same_again():
    vocabulary = VOCABULARIES[1]
    tokens = tokens_of("«<think>»</think>«</think>»é", vocabulary)
    reader = MessageReader(QUOTED)
    text = as_read(vocabulary, QUOTED, tokens)
    assert folded([*reader.feed(text), *reader.end()]) == Message("é", "</think>")


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_budget_survives_a_quoted_mark(vocabulary: MarkedVocabulary):
    budget = ThoughtLimit(12, "<think>", "</think>", "</think>", True).start(vocabulary, None)()
    assert isinstance(budget, ThinkingBudget)
    for token in b"a</think>bcd":
        assert not budget.forced()
        budget.accept(token)
    assert budget.forced() == (vocabulary.token("</think>"),)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_a_grammar_knows_the_same_marks(vocabulary: MarkedVocabulary):
    from server.api.call_grammar import CallGrammar

    lark = CallGrammar(vocabulary, ReplyFormat(THINK, thinking=True)).answer({"type": "object"})
    constraint = Compiler(vocabulary).lark(lark, "x")()
    for token in tokens_of("a</think>{«</think>»{}", vocabulary):
        assert constraint.allows(token)
        constraint.accept(token)
    assert constraint.mask()[IM_END]


THINKS = ReplyFormat(THINK, thinking=True, calls=JSON_IN_TAGS, functions=TOOLS)


@pytest.mark.parametrize("n_step", [1, 1000])
@pytest.mark.parametrize(
    ("stops", "text", "message", "stop"),
    [
        (["Question:"], "Question: what?«</think>»\n\nThis.", Message("This.", "Question: what?"), None),
        (["\n\n"], "a\n\nb«</think>»\n\nc\n\nd", Message("c", "a\n\nb"), "\n\n"),
        (["."], "a.«</think>»b. c", Message("b", "a."), "."),
        (["c "], "«</think>»b c", Message("b c", ""), None),
        (["</think>"], "a«</think>»b </think> c", Message("b ", "a"), "</think>"),
    ],
)
def test_stop_strings_are_looked_for_in_content(
    stops: list[str], text: str, message: Message, stop: str | None, n_step: int
):
    found, reply = said(text, THINKS, VOCABULARIES[0], stops=stops, n_step=n_step)
    assert (found, reply.reader.stop_string) == (message, stop)


def test_no_stop_string_cuts_a_call():
    call = '«<tool_call>»{"name": "f", "arguments": {"a": "b. c"}}«</tool_call>»'
    message, reply = said(f"«</think>»Hm{call}", THINKS, VOCABULARIES[0], stops=[".", "{"])
    assert [one.arguments for one in message.calls] == ['{"a": "b. c"}']
    assert not reply.stopped


def test_stop_string_ends_non_call():
    vocabulary = VOCABULARIES[0]
    call = Calls("⟨object⟩", "[calls]")
    message, reply = said("ab [calls] none", ReplyFormat(calls=call), vocabulary, stops=["alls"])
    assert (message.content, reply.stopped) == ("ab [c", True)


def test_thoughts_that_are_content_have_stop_strings():
    form = ReplyFormat(Thoughts("<think>", "</think>")).without_thoughts
    message, _ = said("«<think>»a. b", form, VOCABULARIES[1], stops=["."])
    assert message.content == "<think>a"


def test_stop_string_tokens_give_no_text():
    _, reply = said("abXYc", PLAIN, VOCABULARIES[0], stops=["XY"])
    assert [span.position for span in reply.completed(reply.reader.n_parsed)] == [0, 1]
    assert reply.n_predicted == 4


def test_channels_end_nothing_but_content():
    channels = Channels("<|start|>assistant", "<|message|>", "", "<|channel|>final<|message|>")
    form = ReplyFormat(channels=channels, headed=False, calls=None)
    message, _ = said(
        "«<|channel|>»final«<|message|>»a stop b", form, VOCABULARIES[0], stops=["stop", "final"]
    )
    assert message.content == "a "


def test_marks_are_looked_up_once():
    assert marker_tokens(VOCABULARIES[0], ["<think>", "nothing"]) == {
        "<think>": VOCABULARIES[0].token("<think>")
    }
