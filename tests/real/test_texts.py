"""Greedy texts of real models are those of llama-cpp-python, whoever drafts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.equal import STABLE_ROWS
from benchmarks.prompts import load
from server.engine.request import GenerationRequest, Speculation
from server.llama.backend import Vocabulary
from server.llama.llamacpp import LlamaBackend
from server.sampling.params import SamplingParams
from tests.model.duet import Duet, counts
from tests.real.plain import PlainDecoder, opened
from tests.support import Outcome

N_PROMPTS, N_DRAFTED, N_TOKENS = 20, 3, 24
SHORT = 300  # characters of a prompt, so that these tests are quick
BITWISE = Speculation(exactness="width-stable")


def questions(n: int) -> list[str]:
    """Return n short prompts, of all kinds."""
    asked_once = [prompt.messages[0]["content"] for prompt in load() if len(prompt.messages) == 1]
    short = [text for text in asked_once if len(text) < SHORT]
    assert len(short) >= n
    return [short[i * len(short) // n] for i in range(n)]


def asks(vocabulary: Vocabulary, n: int, speculation: Speculation) -> list[GenerationRequest]:
    """Return requests in the model's own form: turns for SmolLM2, a beginning for Gemma's base."""
    turns = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    form, begin = ("{}\n\n", [vocabulary.bos or 0]) if vocabulary.add_bos else (turns, [])
    return [
        GenerationRequest(
            [*begin, *vocabulary.tokenize(form.format(question), special=True)],
            SamplingParams(0.0),
            N_TOKENS,
            speculation=speculation,
        )
        for question in questions(n)
    ]


def run(duet: Duet, requests: Sequence[GenerationRequest]) -> list[Outcome]:
    """Run each alone, in an empty cache."""
    outcomes: list[Outcome] = []
    for request in requests:
        outcomes += duet.run(request)
        for slot in duet.engine.slots.list():
            duet.engine.slots.erase(slot.id)
    return outcomes


def tokens_of(outcomes: Sequence[Outcome]) -> list[tuple[int, ...]]:
    return [outcome.tokens for outcome in outcomes]


@pytest.mark.parametrize(("name", "n"), [("smollm2", N_PROMPTS), ("gemma", N_DRAFTED)])
def test_texts_are_those_of_llama_cpp_python(name: str, n: int, request: pytest.FixtureRequest):
    backend: LlamaBackend = request.getfixturevalue(name)
    plain: PlainDecoder = request.getfixturevalue(f"plain_{name}")
    requests = asks(backend.vocab, n, Speculation())
    expected = [plain.text(one.prompt, N_TOKENS) for one in requests]
    assert tokens_of(run(Duet(backend), requests)) == expected


@pytest.fixture(scope="module")
def undrafted(smollm2: LlamaBackend) -> list[tuple[int, ...]]:
    """Return what the model says without guesses, all steps as wide as those with."""
    return tokens_of(run(Duet(smollm2), asks(smollm2.vocab, N_DRAFTED, BITWISE)))


def test_steps_of_one_width_say_the_same(
    smollm2: LlamaBackend, plain_smollm2: PlainDecoder, undrafted: list[tuple[int, ...]]
):
    prompts = [one.prompt for one in asks(smollm2.vocab, N_DRAFTED, BITWISE)]
    assert undrafted == [plain_smollm2.texts(one, N_TOKENS, widths=[STABLE_ROWS])[0] for one in prompts]


@pytest.mark.parametrize("source", ["lookup", "drafter", "inline"])
def test_no_guess_changes_a_bit(
    source: str, smollm2: LlamaBackend, smollm2_file: Path, undrafted: list[tuple[int, ...]]
):
    requests = asks(smollm2.vocab, N_DRAFTED, BITWISE)
    with closing(opened(smollm2_file)) as itself:
        duet = Duet(
            smollm2,
            lookup=source == "lookup",
            drafter=itself if source == "drafter" else None,
            inline=itself if source == "inline" else None,
        )
        outcomes = run(duet, requests)
    assert tokens_of(outcomes) == undrafted
    accepted, drafted = counts(outcomes)
    assert drafted
    assert source == "lookup" or accepted > 0.8 * drafted


def test_translated_guesses_change_no_bit(
    smollm2: LlamaBackend, gemma: LlamaBackend, undrafted: list[tuple[int, ...]]
):
    outcomes = run(Duet(smollm2, drafter=gemma), asks(smollm2.vocab, N_DRAFTED, BITWISE))
    assert tokens_of(outcomes) == undrafted
    assert counts(outcomes)[0] > 0
