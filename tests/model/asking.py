"""Requests for the evaluation prompts, and what their clients see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.prompts import PYTHON, load
from server.engine.events import Committed
from server.engine.request import GenerationRequest
from server.llama.backend import Vocabulary
from server.sampling.logprobs import TokenLogprobs
from server.sampling.params import SamplingParams
from tests.support import Outcome


def asks(vocabulary: Vocabulary, n: int, temperature: float, max_tokens: int) -> list[GenerationRequest]:
    """Return requests for the first n evaluation prompts at this temperature, with logprobs."""
    texts = [
        "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in prompt.messages)
        for prompt in load(n, PYTHON)
    ]
    return [
        GenerationRequest(
            vocabulary.tokenize(f"{text}<|im_start|>assistant\n", special=True),
            SamplingParams(temperature, seed=300 + i),
            max_tokens,
            n_logprobs=0,
        )
        for i, text in enumerate(texts)
    ]


class Seen(NamedTuple):
    """What a client sees of a reply.

    Logprobs are equal only if their bits are.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    reason: str
    n_prompt: int
    n_cached: int
    n_predicted: int


def seen(outcome: Outcome) -> Seen:
    stats = outcome.finished.stats
    logprobs = [one for e in outcome.events if isinstance(e, Committed) for one in e.logprobs]
    counts = (stats.n_prompt, stats.n_cached, stats.n_predicted)
    return Seen(outcome.tokens, tuple(logprobs), outcome.finished.reason, *counts)


def accepted_and_drafted(outcomes: Sequence[Outcome]) -> tuple[int, int]:
    stats = [outcome.finished.stats for outcome in outcomes]
    return sum(s.n_accepted for s in stats), sum(s.n_drafted for s in stats)
