"""Prompts that begin with the exact tokens of past replies, and what else they are: the tokenizer's."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from server.llama.backend import Vocabulary
from server.settings import BUNDLED_MODEL
from server.text.guard import begun, unguarded
from server.text.guarded_tokens import GuardedTokenizer
from server.text.template import ChatTemplate, Message
from server.text.transcript import Transcript
from tests.checks import check_transcript
from tests.fake_backend import IM_END, FakeVocabulary
from tests.server.text.vocabularies import Segmenter, ToyBpe, loaded
from tests.templates import LLAMA3, THINKING, TRIMMING

TOY = ToyBpe()
END = TOY.control("<|im_end|>")
CHATML = ChatTemplate(None, controls=TOY.added)
SYLLABLES = [
    "hello",
    " world",
    "the",
    " the",
    "aa",
    "a",
    " ",
    "\n",
    ".",
    "?!",
    "é",
    "ü",
    "😀",
    "1",
    "<|im_end|>",
]

texts = st.lists(st.sampled_from(SYLLABLES), max_size=12).map("".join)
turns = st.lists(st.tuples(texts, texts), min_size=10, max_size=10)
seeds = st.integers(0, 2**32)


def spelled(vocabulary: Vocabulary, tokens: list[int]) -> bytes:
    return b"".join(vocabulary.piece(token, special=True) for token in tokens)


class Conversation:
    """A client that sends its history back as text, and the server's part of it."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        template: ChatTemplate = CHATML,
        end: int = END,
        transcript: Transcript | None = None,
    ) -> None:
        self.vocabulary, self.template, self.end = vocabulary, template, end
        self.transcript = transcript or Transcript(vocabulary)
        self.messages: list[Message] = []
        self.text = ""  # the last prompt's
        self.prompt: list[int] = []
        self.held: list[int] = []  # all tokens of the last turn, as the KV cache has them

    def ask(self, content: str, role: str = "user") -> list[int]:
        """Return the tokens of the next prompt."""
        self.messages.append({"role": role, "content": content})
        self.text = self.template.render(self.messages)
        self.prompt = self.transcript.tokens_for(self.text, "salt")
        return self.prompt

    def reply(self, tokens: list[int], message: Message | None = None, *, ended: bool = True) -> None:
        """Add a generated reply, of which the client makes `message`."""
        generated = [*tokens, *[self.end] * ended]
        self.transcript.remember(self.text, self.prompt, generated, "salt")
        self.held = [*self.prompt, *generated]
        content = b"".join(self.vocabulary.piece(token) for token in tokens).decode(errors="replace")
        self.messages.append(message or {"role": "assistant", "content": content})

    @property
    def n_reused(self) -> int:
        """Leading tokens of the last prompt that the turn before it left."""
        pairs = zip(self.held, self.prompt, strict=False)
        return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(self.held), len(self.prompt)))


def converse(conversation: Conversation, said: list[tuple[str, str]], seed: int) -> None:
    """Check that every turn begins with all earlier tokens and goes on as the tokenizer would."""
    randomness, segmenter = random.Random(seed), Segmenter(conversation.vocabulary)
    for asked, answered in said:
        held = conversation.held
        prompt = conversation.ask(asked)
        n_known = len(spelled(conversation.vocabulary, held).decode())
        rest = conversation.text[len(begun(conversation.text, n_known)) :]
        assert prompt == held + GuardedTokenizer(conversation.vocabulary).tokens(rest)
        assert spelled(conversation.vocabulary, prompt) == unguarded(conversation.text).encode()
        conversation.reply(segmenter.cut(answered, randomness))
    check_transcript(conversation.transcript)
    assert len(conversation.transcript) == 1


@given(turns, seeds)
@settings(max_examples=40)
def test_ten_turns_of_chatml_reuse_everything(said: list[tuple[str, str]], seed: int):
    converse(Conversation(TOY), said, seed)


@given(turns, seeds)
@settings(max_examples=40)
def test_ten_turns_of_llama_3_reuse_everything(said: list[tuple[str, str]], seed: int):
    template = ChatTemplate(LLAMA3, bos="<|begin_of_text|>", controls=TOY.added)
    said = [(asked, answered.strip()) for asked, answered in said]
    converse(Conversation(TOY, template, TOY.control("<|eot_id|>")), said, seed)


@given(turns, seeds)
@settings(max_examples=10)
def test_byte_vocabulary_turns_reuse_everything(said: list[tuple[str, str]], seed: int):
    converse(Conversation(FakeVocabulary(), end=IM_END), said, seed)


@given(st.lists(st.tuples(texts, texts), max_size=6), texts, texts, seeds)
def test_tokens_stand_for_the_text(replies: list[tuple[str, str]], asked: str, answered: str, seed: int):
    """It holds for any remembered text and any prompt."""
    transcript, segmenter, randomness = Transcript(TOY), Segmenter(TOY), random.Random(seed)
    kept = [
        (TOY.tokenize(prompt, special=True), segmenter.cut(reply, randomness)) for prompt, reply in replies
    ]
    for (prompt, _), (tokens, reply) in zip(replies, kept, strict=True):
        transcript.remember(prompt, tokens, reply, "")
    check_transcript(transcript)
    for text in (asked, *(prompt + reply[:-1] + answered for prompt, reply in replies)):
        tokens = transcript.tokens_for(text, "")
        assert spelled(TOY, tokens) == text.encode()
        canonical = TOY.tokenize(text, special=True)
        assert any(is_spliced(tokens, prompt + reply, canonical) for prompt, reply in [([], []), *kept])


def is_spliced(tokens: list[int], kept: list[int], canonical: list[int]) -> bool:
    """Return True if the tokens are a beginning of `kept` and, from a boundary on, the tokenizer's."""
    boundaries = {len(spelled(TOY, canonical[:n])): n for n in range(len(canonical) + 1)}
    for n in range(min(len(kept), len(tokens)) + 1):
        skipped = boundaries.get(len(spelled(TOY, kept[:n])))
        if skipped is not None and tokens == kept[:n] + canonical[skipped:]:
            return True
    return False


@given(st.lists(texts, max_size=6), texts)
@example(["\n\naa"], "")  # two tokens before a word, one at the end
def test_prompts_alone_change_no_tokens(prompts: list[str], asked: str):
    """Only generated text may differ from the tokenizer's tokens."""
    transcript = Transcript(TOY)
    for text in (*prompts, asked, *(prompt[:-2] + asked for prompt in prompts)):
        tokens = transcript.tokens_for(text, "")
        assert tokens == TOY.tokenize(text, special=True)
        transcript.remember(text, tokens, (), "")


def test_known_text_is_not_retokenised():
    vocabulary = ToyBpe()
    conversation = Conversation(vocabulary)
    conversation.ask("hello the world " * 2000)
    conversation.reply(list(b"well, "))
    before = vocabulary.n_tokenized
    conversation.ask("and now?")
    assert vocabulary.n_tokenized - before < 100
    assert conversation.n_reused == len(conversation.held)


def test_trimmed_reply_is_kept_partly():
    conversation = Conversation(TOY, ChatTemplate(TRIMMING))
    prompt = conversation.ask("hello")
    hel, lo, world = (TOY.pieces.index(piece) for piece in (b"hel", b"lo", b" world"))
    conversation.reply([hel, lo, world, *b" \n"])
    conversation.ask("and?")
    assert conversation.n_reused == len(prompt) + 3


def test_trimmed_reply_parts_at_boundaries():
    conversation = Conversation(TOY, ChatTemplate(TRIMMING))
    prompt = conversation.ask("hello")
    conversation.reply([*(TOY.pieces.index(piece) for piece in (b"hel", b"lo", b".\n"))])
    again = conversation.ask("and?")
    assert conversation.n_reused == len(prompt) + 2
    assert again[len(prompt) + 2 :][:2] == [ord("."), END]


def test_kept_end_loses_no_merge():
    """The client continues the last word of the reply."""
    conversation = Conversation(TOY)
    prompt = conversation.ask("hello")
    conversation.reply([*b"h", TOY.pieces.index(b"ll"), *b"o t"])
    conversation.messages[-1] = {"role": "assistant", "content": "hllo the"}
    again = conversation.ask("and?")
    assert conversation.n_reused == len(prompt) + 3, "h, ll, o; the space is part of the next word"
    assert again[len(prompt) + 3 :][:2] == [TOY.pieces.index(b" the"), END]


def test_thoughts_roll_back_and_settle():
    template = ChatTemplate(THINKING)
    conversation = Conversation(TOY, template)
    prompt = conversation.ask("hello")
    messages = list(conversation.messages)
    segmenter, randomness = Segmenter(TOY), random.Random(1)
    conversation.reply(segmenter.cut("<think>\nthe world?\n</think>\n\nhello the world", randomness))
    next_prefix = template.next_prefix(messages, conversation.messages[-1])
    assert next_prefix is not None
    assert next_prefix.endswith("assistant\nhello the world<|im_end|>\n<|im_start|>user\n")
    warm = conversation.transcript.tokens_for(next_prefix, "salt")
    assert warm[: len(prompt)] == prompt
    again = conversation.ask("and then?")
    assert conversation.n_reused == len(prompt)
    assert again[: len(warm)] == warm, "evaluated ahead, only the new message is left"


def test_calls_settle_as_templates_write():
    template = ChatTemplate(THINKING)
    conversation = Conversation(TOY, template)
    prompt = conversation.ask("hello")
    messages = list(conversation.messages)
    call = {"id": "1", "type": "function", "function": {"name": "the", "arguments": '{"a":1}'}}
    reply: Message = {"role": "assistant", "content": "<think>\nhm\n</think>", "tool_calls": [call]}
    written = '<think>\nhm\n</think>\n<tool_call>\n{"name":"the", "arguments":{"a":1}}\n</tool_call>'
    conversation.reply(Segmenter(TOY).cut(written, random.Random(2)), reply)
    next_prefix = template.next_prefix(messages, reply)
    assert next_prefix is not None
    warm = conversation.transcript.tokens_for(next_prefix, "salt")
    again = conversation.ask("42", role="tool")
    assert conversation.n_reused > len(prompt) + 10, "thoughts are kept as long as tools are called"
    assert again[: len(warm)] == warm
    conversation.reply([*b"42"])
    conversation.ask("and?")
    assert spelled(TOY, conversation.prompt) == conversation.text.encode()


def test_a_character_in_several_tokens_is_kept():
    conversation = Conversation(TOY)
    conversation.ask("hello")
    conversation.reply([*"é😀".encode(), TOY.pieces.index("é".encode())])
    conversation.ask("and?")
    assert conversation.n_reused == len(conversation.held)


def test_broken_character_is_kept_before():
    conversation = Conversation(TOY)
    prompt = conversation.ask("hello")
    conversation.reply([*b"aa", *"😀".encode()[:2]])
    conversation.ask("and?")
    assert "\ufffd" in conversation.text
    assert conversation.n_reused == len(prompt) + 2
    assert spelled(TOY, conversation.prompt) == conversation.text.encode()


def test_length_cut_reply_is_kept():
    conversation = Conversation(TOY)
    conversation.ask("hello")
    conversation.reply([*b"the wor"], ended=False)
    conversation.ask("go on")
    assert conversation.n_reused == len(conversation.held)


def test_both_replies_are_found():
    conversation = Conversation(TOY)
    conversation.ask("hello")
    before = list(conversation.messages)
    histories: list[tuple[list[int], list[Message]]] = []
    for reply in (b"hello", b"hello the"):
        conversation.reply(list(reply))
        histories.append((conversation.held, [*before, conversation.messages[-1]]))
    for held, messages in histories:
        conversation.messages = messages
        assert conversation.ask("and?")[: len(held)] == held


def test_salts_never_meet():
    transcript = Transcript(TOY)
    prompt = TOY.tokenize("aaaa", special=True)
    transcript.remember("aaaa", prompt, list(b"aa"), "one")
    assert transcript.tokens_for("aaaaaa<|im_end|>", "one") == [*prompt, *b"aa", END]
    assert transcript.tokens_for("aaaaaa<|im_end|>", "two") == TOY.tokenize("aaaaaa<|im_end|>", special=True)


def test_the_least_recently_used_is_forgotten():
    transcript = Transcript(TOY, most_tokens=100, most_conversations=3)
    for name in ("x", "y", "z"):
        transcript.remember(name, list(name.encode()), list(b"aa"), "")
    assert transcript.tokens_for("xaa<|im_end|>", "") == [*b"xaa", END]
    transcript.remember("w", list(b"w"), list(b"aa"), "")
    check_transcript(transcript)
    found = {
        name
        for name in "wxyz"
        if transcript.tokens_for(f"{name}aa<|im_end|>", "")[:-1] == [*f"{name}aa".encode()]
    }
    assert found == {"w", "x", "z"}


@given(st.lists(st.tuples(st.booleans(), texts, texts, st.sampled_from("ab")), max_size=40))
def test_bounds_hold(steps: list[tuple[bool, str, str, str]]):
    transcript = Transcript(TOY, most_tokens=60, most_conversations=4)
    for remembers, text, reply, salt in steps:
        tokens = transcript.tokens_for(text, salt)
        if remembers:
            transcript.remember(text, tokens, list(reply.encode()), salt)
        check_transcript(transcript)


def test_overlong_conversation_displaces_nothing():
    transcript = Transcript(TOY, most_tokens=10)
    transcript.remember("x", list(b"x"), list(b"aa"), "")
    transcript.remember("y", list(b"y"), list(b"a" * 10), "")
    assert (len(transcript), transcript.n_tokens) == (1, 3)


class Lossy(ToyBpe):
    """A tokenizer that drops what it does not know."""

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        return super().tokenize(text.replace("é", ""), special=special)


def test_unplaceable_text_is_dropped():
    conversation = Conversation(Lossy())
    conversation.ask("hello")
    conversation.reply([*b"a a"])
    held = conversation.held
    conversation.ask("é")
    conversation.reply([*b"b b"])
    conversation.ask("and?")
    assert conversation.prompt[: len(held)] == held
    assert conversation.prompt == [
        *held,
        *conversation.vocabulary.tokenize(conversation.text.partition("a a<|im_end|>")[2], special=True),
    ]


@pytest.mark.model
@pytest.mark.parametrize("seed", range(5))
def test_bundled_vocabulary_turns_reuse_everything(seed: int):
    with loaded(Path(BUNDLED_MODEL)) as vocabulary:
        assert vocabulary.eos is not None
        randomness = random.Random(seed)
        said = [
            (" ".join(randomness.choices(SYLLABLES, k=20)), "".join(randomness.choices(SYLLABLES, k=30)))
        ] * 10
        converse(Conversation(vocabulary, end=vocabulary.eos), said, seed)
