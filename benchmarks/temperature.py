"""What drafts are worth at temperature 1: `python -m benchmarks.temperature`.

Two parts, neither of which has anything to do with time. The bundled pair: the target writes replies, and at
each of their positions the draft model, which is given all tokens before it, guesses the next one by each
rule. Synthetic pairs: the same for rows made of random numbers, from peaked to flat.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import report, texts
from benchmarks.prompts import Prompt, load
from drafters.guessing import guess
from drafters.rule import Rule
from drafters.settings import BUNDLED_MODEL as BUNDLED_DRAFT
from server.engine.engine import Engine
from server.engine.events import Committed, Event, Failed
from server.engine.proposer import NoProposer
from server.engine.request import GenerationRequest
from server.engine.scheduler import Limits
from server.errors import DuoError
from server.flags import n_cores
from server.llama.backend import Backend, Batch
from server.llama.llamacpp import LlamaBackend, LlamaOptions
from server.sampling.draw import Distribution, Row, distribution, draw
from server.sampling.params import SamplingParams
from server.settings import BUNDLED_MODEL

N_CELLS, N_SEQS = 8192, 4
GREEDY, SHARED, CHOSEN, INDEPENDENT, OPTIMUM = RULES = (
    "largest logit",
    "shared noise",
    "chosen by the drafter",
    "independent sample",
    "optimum",
)
WAYS = {
    "temperature 0": SamplingParams(temperature=0.0),
    "temperature 1": SamplingParams(1.0, top_k=0, top_p=1.0, min_p=0.0),
    "temperature 1, filtered": SamplingParams(1.0),
    "server's defaults": SamplingParams(),
}
LEGEND = (
    "Shares of positions at which the guess is the target's token. Chosen by the drafter: what its rule, "
    "which learns from position to position, takes of the first two. Independent: a sample of the draft's "
    "distribution. Optimum: one minus the total variation distance, what rejection sampling accepts."
)


class Score:
    """How often each rule's guess is the target's token, over positions in the order in which a drafter
    would see them. Independent samples and the optimum count with their probabilities."""

    def __init__(self) -> None:
        self.n = 0
        self._sums: dict[str, float] = dict.fromkeys(RULES, 0.0)
        self._rule = Rule()

    def add(self, token: int, rows: tuple[Row, Row], params: SamplingParams, position: int) -> None:
        """The target chose `token` for this position. rows: the target's logits and the draft's."""
        target, draft = rows
        guessed = guess(draft, params, position, likeliest=self._rule.likeliest, second=False)
        self._rule.judge(guessed, token)
        equal, common = _overlap(distribution(target, params), distribution(draft, params))
        hits = (guessed.likeliest == token, guessed.drawn == token, guessed.token == token, equal, common)
        for rule, hit in zip(RULES, hits, strict=True):
            self._sums[rule] += hit
        self.n += 1

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
    """All tokens of a conversation, of which the first n_prompt were given and the others drawn by these
    parameters."""

    tokens: tuple[int, ...]
    n_prompt: int
    sampling: SamplingParams


def prompt_ids(backend: Backend, prompts: Sequence[Prompt]) -> list[tuple[int, ...]]:
    """Raises DuoError."""
    begun = texts.record(backend, prompts, max_tokens=1)
    return [
        text[: len(text) - texts.reply_length(backend, prompt, text)]
        for prompt, text in zip(prompts, begun, strict=True)
    ]


def write(
    backend: Backend, prompts: Sequence[tuple[int, ...]], sampling: SamplingParams, max_tokens: int
) -> list[Text]:
    """The backend's replies without drafts, each by a seed of its own; as many at once as it has sequences.
    Leaves the KV cache empty. Raises DuoError."""
    events: list[tuple[int, Event]] = []
    limits = Limits(n_batch=backend.n_batch, draft_max=0, leaves=1)
    engine = Engine(
        backend,
        NoProposer(),
        lambda i, event: events.append((i, event)),
        n_slots=backend.n_seqs,
        limits=limits,
    )
    written = [list(prompt) for prompt in prompts]
    for i, prompt in enumerate(prompts):
        own = sampling.reseeded(i + 1)
        engine.submit(i, GenerationRequest(prompt, own, max_tokens, stop_tokens=backend.vocab.eog))
    while engine.step():
        pass
    for i, event in events:
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, Committed):
            written[i] += event.tokens
    for seq in range(backend.n_seqs):
        backend.trim(seq, 0)
    return [
        Text(tuple(tokens), len(prompt), sampling.reseeded(i + 1))
        for i, (tokens, prompt) in enumerate(zip(written, prompts, strict=True))
    ]


def rows_of(backend: Backend, text: Text) -> Iterator[Row]:
    """The rows that say what follows, one for each token of the reply, evaluated many at once. Each is valid
    until the next is asked for. Raises DuoError."""
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


def pair_table(scores: dict[str, Score]) -> str:
    """Markdown: rules by ways of sampling, beside each share its ratio to that of the first way."""
    first = next(iter(scores.values()))
    lines = [f"| | {' | '.join(scores)} |", f"| --- | {'---: | ' * len(scores)}".rstrip()]
    for rule in RULES:
        cells = [f"{first.share(rule):.3f}"]
        cells += [
            f"{s.share(rule):.3f} ({s.share(rule) / first.share(rule):.2f})" if first.share(rule) else "-"
            for s in list(scores.values())[1:]
        ]
        lines.append(f"| {rule} | {' | '.join(cells)} |")
    counts = [f"{s.n:,} (± {math.sqrt(0.25 / s.n) if s.n else 0:.3f})" for s in scores.values()]
    lines.append(f"| positions (standard error at most) | {' | '.join(counts)} |")
    lines.append(f"| the drafter's rule ends with | {' | '.join(s.takes for s in scores.values())} |")
    return "\n".join(lines)


def measure_pair(args: argparse.Namespace) -> str:
    """Markdown. Raises DuoError."""
    options = [
        LlamaOptions(path, N_CELLS, N_SEQS, n_threads=args.threads) for path in (args.model, args.draft_model)
    ]
    with closing(LlamaBackend(options[0])) as target, closing(LlamaBackend(options[1])) as draft:
        prompts = prompt_ids(target, load(args.prompts))
        scores: dict[str, Score] = {}
        for name, sampling in WAYS.items():
            scores[name] = score(target, draft, write(target, prompts, sampling, args.max_tokens))
            print(f"{name}: {scores[name].share(CHOSEN):.3f} of {scores[name].n} positions", flush=True)
    what = f"{report.model_line(args.model)}, guessed by {report.model_line(args.draft_model)}; "
    what += f"{len(prompts)} prompts, at most {args.max_tokens} tokens. In parentheses: to temperature 0."
    return f"{what}\n\n{pair_table(scores)}"


# -- synthetic pairs ----------------------------------------


@dataclass(frozen=True, slots=True)
class Pair:
    """The target's logits are normal with standard deviation `spread`; the draft's are `factor` times the
    same with normal errors of standard deviation `error` added."""

    spread: float
    error: float
    factor: float = 1.0


PAIRS = (
    *(Pair(spread, error) for spread in (1.0, 2.0, 3.0, 5.0, 8.0) for error in (0.25, 1.0)),
    Pair(5.0, 0.25, 0.5),  # drafts that are less, and more, sure than the target
    Pair(8.0, 1.0, 0.25),
    Pair(3.0, 0.25, 2.0),
)


@dataclass(frozen=True, slots=True)
class Flatness:
    """Means over positions: the target's largest probability, and the exponential of its entropy."""

    largest: float
    perplexity: float


def score_pair(pair: Pair, n_vocab: int, n_positions: int) -> tuple[Score, Flatness]:
    """Pure: the same numbers each time."""
    rng = np.random.default_rng(0)
    params = WAYS["temperature 1"].reseeded(1)
    result, largest, entropy = Score(), 0.0, 0.0
    for position in range(n_positions):
        target = (pair.spread * rng.standard_normal(n_vocab)).astype(np.float32)
        error = pair.error * rng.standard_normal(n_vocab)
        draft = (pair.factor * (target + error)).astype(np.float32)
        p = distribution(target, params).probabilities
        largest += float(p.max()) / n_positions
        entropy -= float(p @ np.log(p)) / n_positions
        result.add(draw(target, params, position), (target, draft), params, position)
    return result, Flatness(largest, math.exp(entropy))


def synthetic_table(n_vocab: int, n_positions: int, pairs: Sequence[Pair] = PAIRS) -> str:
    """Markdown."""
    lines = [
        f"| spread | error | factor | largest p | perplexity | {' | '.join(RULES)} | the drafter ends with |",
        "| ---: " * (5 + len(RULES)) + "| --- |",
    ]
    for pair in pairs:
        result, flatness = score_pair(pair, n_vocab, n_positions)
        cells = [f"{pair.spread:g}", f"{pair.error:g}", f"{pair.factor:g}"]
        cells += [f"{flatness.largest:.3f}", f"{flatness.perplexity:,.1f}"]
        cells += [f"{result.share(rule):.3f}" for rule in RULES]
        lines.append(f"| {' | '.join(cells)} | {result.takes} |")
    what = (
        f"Synthetic pairs at temperature 1, unfiltered: {n_vocab:,} tokens, {n_positions:,} positions each. "
        "The target's logits are normal with standard deviation `spread`, the draft's are these plus normal "
        "errors of standard deviation `error`, times `factor`."
    )
    return f"{what}\n\n" + "\n".join(lines)


def _flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.temperature", description="Acceptance by rule of guessing and temperature."
    )
    parser.add_argument("--model", type=Path, default=BUNDLED_MODEL, help="GGUF file (default: bundled)")
    parser.add_argument(
        "--draft-model", type=Path, default=BUNDLED_DRAFT, help="likewise, of the draft model"
    )
    parser.add_argument("--threads", type=int, default=n_cores(), help="of each model")
    parser.add_argument("--prompts", type=int, help="how many different prompts (default: all)")
    parser.add_argument("--max-tokens", type=int, default=160, help="longest reply")
    parser.add_argument("--vocabulary", type=int, default=2000, help="tokens of a synthetic row")
    parser.add_argument("--positions", type=int, default=2000, help="of each synthetic pair")
    parser.add_argument("--append", type=Path, help="append the result to this markdown file")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    args = _flags().parse_args(arguments)
    try:
        parts = [LEGEND, measure_pair(args), synthetic_table(args.vocabulary, args.positions)]
        title = "acceptance at temperature 1"
        report.publish(report.section(title, "benchmarks.temperature", arguments, parts), args.append)
    except (DuoError, OSError) as error:
        print(f"temperature: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
