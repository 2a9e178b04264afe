"""What drafts are worth at temperature 1: `python -m benchmarks.temperature`.

Acceptance only, no times. The bundled pair: the target writes replies, and at each of their positions the
draft model, given all tokens before it, guesses the next one by each rule.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from benchmarks import program, report, texts
from benchmarks.prompts import PYTHON, load
from drafters.guessing import NextToken, Rule
from server.llama.backend import Backend, Batch
from server.llama.llamacpp import LlamaBackend, LlamaOptions
from server.sampling.draw import Distribution, Row, distribution
from server.sampling.params import SamplingParams

N_CELLS, N_SEQS = 8192, 4
GREEDY, SHARED, CHOSEN = "largest logit", "shared noise", "chosen by the drafter"
INDEPENDENT, OPTIMUM = "independent sample", "optimum"
RULES = (GREEDY, SHARED, CHOSEN, INDEPENDENT, OPTIMUM)
WAYS = {
    "temperature 0": SamplingParams(temperature=0.0),
    "temperature 1": SamplingParams(1.0, top_k=0, top_p=1.0, min_p=0.0),
    "temperature 1, filtered": SamplingParams(1.0),
    "server's defaults": SamplingParams(),
}
LEGEND = (
    "Shares of positions at which the guess is the target's token. Chosen by the drafter: what its rule, "
    "which learns from position to position, takes of the first two. Independent: a sample of the draft's "
    "distribution. Optimum: one minus the total variation distance, what rejection sampling accepts. Of "
    "wrong ones: of the drafter's wrong guesses, those for which its second guess, or one of its second and "
    "third, is right."
)


class Score:
    """Shares of positions at which each rule's guess is the target's token, over positions in a drafter's
    order. Independent samples and the optimum count with their probabilities."""

    def __init__(self) -> None:
        self.n = 0
        self._sums: dict[str, float] = dict.fromkeys(RULES, 0.0)
        self._rule = Rule()
        self._n_wrong = 0
        self._n_recalled = [0, 0]  # by the second guess, by the second or third

    def add(self, token: int, rows: tuple[Row, Row], params: SamplingParams, position: int) -> None:
        """The target chose `token`. rows: the logits of target and draft."""
        target, draft = rows
        guessed = NextToken(draft, params, position, likeliest=self._rule.likeliest).guess(second=True)
        self._rule.judge(guessed, token)
        equal, common = _overlap(distribution(target, params), distribution(draft, params))
        hits = (guessed.likeliest == token, guessed.drawn == token, guessed.token == token, equal, common)
        for rule, hit in zip(RULES, hits, strict=True):
            self._sums[rule] += hit
        self.n += 1
        if guessed.token != token:
            self._n_wrong += 1
            self._n_recalled[0] += token == guessed.second
            self._n_recalled[1] += token in (guessed.second, guessed.third)

    def recall(self, n: int) -> str:
        """Of the drafter's wrong guesses: those for which one of its first n guesses is right, 2 or 3."""
        return f"{self._n_recalled[n - 2]} of {self._n_wrong}"

    def share(self, rule: str) -> float:
        return self._sums[rule] / self.n

    @property
    def takes(self) -> str:
        """What the drafter's rule takes in the end."""
        return GREEDY if self._rule.likeliest else SHARED


def _overlap(p: Distribution, q: Distribution) -> tuple[float, float]:
    """The probability that independent samples of both are equal, and one minus the total variation."""
    _, i, j = np.intersect1d(p.ids, q.ids, assume_unique=True, return_indices=True)
    ours, theirs = p.probabilities[i], q.probabilities[j]
    return float(ours @ theirs), float(np.minimum(ours, theirs).sum())


# -- the bundled pair ----------------------------------------


@dataclass(frozen=True, slots=True)
class Text:
    """A conversation's tokens; those after the first n_prompt were drawn with these parameters."""

    tokens: tuple[int, ...]
    n_prompt: int
    sampling: SamplingParams


def write(
    backend: Backend, prompts: Sequence[tuple[int, ...]], sampling: SamplingParams, max_tokens: int
) -> list[Text]:
    """The backend's replies without drafts, each by a seed of its own. Raises DuoError."""
    requests = [(prompt, sampling.reseeded(i)) for i, prompt in enumerate(prompts, start=1)]
    written = texts.generate(backend, requests, max_tokens)
    return [Text(tokens, len(prompt), own) for tokens, (prompt, own) in zip(written, requests, strict=True)]


def rows_of(backend: Backend, text: Text) -> Iterator[Row]:
    """A row of logits for each token of the reply, valid until the next one. Raises DuoError."""
    given = text.tokens[:-1]
    for begin in range(0, len(given), backend.n_batch):
        chunk = given[begin : begin + backend.n_batch]
        n_wanted = min(len(chunk), begin + len(chunk) - text.n_prompt + 1)
        batch = Batch()
        batch.extend(0, begin, chunk, max(0, n_wanted))
        yield from backend.decode(batch)
    backend.trim(0, 0)


def score(target: Backend, draft: Backend, written: Sequence[Text]) -> Score:
    """Over all replies, one after the other. Raises DuoError."""
    result = Score()
    for text in written:
        rows = zip(rows_of(target, text), rows_of(draft, text), strict=True)
        for position, pair in enumerate(rows, start=text.n_prompt):
            result.add(text.tokens[position], pair, text.sampling, position)
    return result


def pair_table(scores: Mapping[str, Score]) -> str:
    """Markdown: rules by ways of sampling; in parentheses the ratio to the first way."""
    first, *others = scores.values()
    rows: list[list[str]] = []
    for rule in RULES:
        base = first.share(rule)
        ratios = [f"{s.share(rule):.3f} ({s.share(rule) / base:.2f})" if base else "-" for s in others]
        rows.append([rule, f"{base:.3f}", *ratios])
    counts = [f"{s.n:,} (± {math.sqrt(0.25 / s.n) if s.n else 0:.3f})" for s in scores.values()]
    rows.append(["positions (standard error at most)", *counts])
    rows += [[f"of wrong ones, among the first {n}", *(s.recall(n) for s in scores.values())] for n in (2, 3)]
    rows.append(["the drafter's rule ends with", *(s.takes for s in scores.values())])
    return report.table(["", *scores], rows)


def measure(args: argparse.Namespace) -> program.Result:
    """Raises DuoError, OSError."""
    options = [
        LlamaOptions(path, N_CELLS, N_SEQS, n_threads=args.threads) for path in (args.model, args.draft_model)
    ]
    with closing(LlamaBackend(options[0])) as target, closing(LlamaBackend(options[1])) as draft:
        prompts = texts.prompt_ids(target, load(args.prompts, PYTHON))
        scores: dict[str, Score] = {}
        for name, sampling in WAYS.items():
            scores[name] = score(target, draft, write(target, prompts, sampling, args.max_tokens))
            print(f"{name}: {scores[name].share(CHOSEN):.3f} of {scores[name].n} positions", flush=True)
    what = f"{report.model_line(args.model)}, guessed by {report.model_line(args.draft_model)}; "
    what += f"{len(prompts)} prompts, at most {args.max_tokens} tokens. In parentheses: to temperature 0."
    return "acceptance at temperature 1", [LEGEND, what, pair_table(scores)]


def _parser() -> argparse.ArgumentParser:
    shared = ("model", "draft-model", "threads", "prompts", "max-tokens")
    what = "Acceptance by rule of guessing and temperature."
    return program.make_parser("temperature", what, *shared, prompts=None, max_tokens=160)


main = program.main(_parser, measure)

if __name__ == "__main__":
    sys.exit(main())
