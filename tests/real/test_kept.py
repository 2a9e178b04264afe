"""Conversations with real models go on from what is kept: in the KV cache, in host memory, on disk."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from server.cache.files import DiskTier
from server.cache.snapshots import Snapshots
from server.engine.request import GenerationRequest
from server.llama.backend import Vocabulary
from server.llama.llamacpp import LlamaBackend
from server.sampling.params import SamplingParams
from tests.model.duet import Duet
from tests.real.plain import PlainDecoder, assert_alike
from tests.support import Outcome

ENOUGH = 1 << 30
N_TOKENS = 12
OPENING = "<|im_start|>user\nWho was {}? Answer in one sentence.<|im_end|>\n<|im_start|>assistant\n"
FOLLOWING = "<|im_end|>\n<|im_start|>user\nTell me more.<|im_end|>\n<|im_start|>assistant\n"
WINDOW = 512  # tokens, of Gemma 3 270M
STORY = "The lighthouse keeper wrote down what the sea brought: a crate of oranges, a letter, {} bottles. "


def duet(backend: LlamaBackend, folder: Path | None = None, n_slots: int = 1) -> Duet:
    """Return a lead with host memory, and a folder that an earlier one may have filled."""
    ready = threading.Event()
    disk = DiskTier(folder, budget_bytes=ENOUGH, fingerprint="real") if folder else None
    return Duet(
        backend, snapshots=Snapshots(memory_bytes=ENOUGH, disk=disk, on_ready=ready.set), n_slots=n_slots
    )


def ask(one: Duet, tokens: list[int]) -> Outcome:
    [outcome] = one.run(GenerationRequest(list(tokens), SamplingParams(0.0), N_TOKENS))
    return outcome


def end(one: Duet) -> None:
    """End the lead: what rests is saved, and the KV cache left empty."""
    one.engine.residence.save_all(60.0)
    for slot in one.engine.slots.list():
        one.engine.slots.erase(slot.id)
    one.engine.residence.snapshots.close()


def opening(vocabulary: Vocabulary, who: str) -> list[int]:
    return vocabulary.tokenize(OPENING.format(who), special=True)


def story(vocabulary: Vocabulary, n_tokens: int) -> list[int]:
    """Return a text of this many tokens, in which no sentence is like another."""
    text = "".join(STORY.format(i) for i in range(n_tokens // 16))
    return [vocabulary.bos or 0, *vocabulary.tokenize(text, special=False)][:n_tokens]


def test_turns_evaluate_only_what_is_new(smollm2: LlamaBackend, plain_smollm2: PlainDecoder):
    one, said = duet(smollm2), opening(smollm2.vocab, "Marie Curie")
    more = smollm2.vocab.tokenize(FOLLOWING, special=True)
    n_held = 0
    for _ in range(3):
        outcome = ask(one, said)
        assert outcome.started.n_cached == n_held
        assert_alike(plain_smollm2, said, outcome.tokens, plain_smollm2.text(said, N_TOKENS))
        n_held = len(said) + N_TOKENS - 1  # the last token of a reply is not evaluated
        said += [*outcome.tokens, *more]
    end(one)


def test_conversations_come_back_from_every_tier(smollm2: LlamaBackend, tmp_path: Path):
    people = ("Ada Lovelace", "Galileo Galilei", "Frida Kahlo", "Isaac Newton")
    conversations = [opening(smollm2.vocab, who) + [999] * 64 for who in people]
    before = duet(smollm2, tmp_path)
    texts = [ask(before, tokens).tokens for tokens in conversations]
    again = [ask(before, tokens) for tokens in conversations]
    assert [outcome.tokens for outcome in again] == texts
    assert [outcome.started.n_cached for outcome in again] == [len(one) - 1 for one in conversations]
    assert before.engine.residence.snapshots.counters().hits > 0
    end(before)
    after = duet(smollm2, tmp_path)
    for tokens, text in zip(conversations, texts, strict=True):
        outcome = ask(after, [*tokens, *text[:-1], 5])
        assert outcome.started.n_cached == len(tokens) + N_TOKENS - 1
    end(after)


@pytest.mark.timeout(900)  # 10,000 tokens are evaluated
@pytest.mark.parametrize("n_tokens", [600, 1500, 3000])
def test_a_passed_window_is_trimmed_and_continued(
    n_tokens: int, gemma: LlamaBackend, plain_gemma: PlainDecoder, tmp_path: Path
):
    whole = story(gemma.vocab, n_tokens)
    assert len(whole) == n_tokens > WINDOW
    one = duet(gemma, tmp_path)
    first = ask(one, whole)
    assert_alike(plain_gemma, whole, first.tokens, plain_gemma.text(whole, N_TOKENS))
    shorter = [*whole[: n_tokens // 2], *whole[5:15]]  # back beyond the window
    trimmed = ask(one, shorter)
    assert trimmed.started.n_cached >= n_tokens // 2
    expected = plain_gemma.text(shorter, N_TOKENS)
    assert_alike(plain_gemma, shorter, trimmed.tokens, expected)
    end(one)
    after = duet(gemma, tmp_path)
    longer = [*whole, *first.tokens, *whole[5:15]]
    continued = ask(after, longer)
    assert continued.started.n_cached >= n_tokens // 2
    edited = ask(after, shorter)
    assert edited.started.n_cached == len(shorter) - 1
    assert_alike(plain_gemma, shorter, edited.tokens, expected)
    end(after)


def test_shared_prompts_pass_the_window(gemma: LlamaBackend):
    head = story(gemma.vocab, 600)
    one = duet(gemma)
    ends = [gemma.vocab.tokenize(f" The {word} " * 30, special=False) for word in ("storm", "crew")]
    ask(one, head + ends[0])
    for i in (1, 0, 1):
        assert ask(one, head + ends[i]).started.n_cached >= len(head)
    end(one)
