"""What no drafter of this speed can exceed: `python -m benchmarks.limits --steps 1:4.7,4:6.5 --guess-ms 1.1`.

The target writes replies, and the draft model says at which of their tokens its first guess is right. From
these, no noise in it: S_lim of each reply, by the share of right guesses (formulas.limit), and an ideal
drafter, which hears of a wrong guess at once, whose guesses arrive at once, and of whose guesses every step
verifies all. So what duo makes of the same texts, by that, is its efficiency (eta). Beside it llama-server's
way: a chain of at most n guesses of probability p_min and more, then a step, one after the other.

`benchmarks.compare` prints --steps and --guess-ms of a run. Inflated models have the texts of the bundled
pair.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

import numpy as np

from benchmarks import program, report, texts
from benchmarks.formulas import limit, staircase
from benchmarks.prompts import PYTHON, load
from benchmarks.temperature import N_CELLS, N_SEQS, WAYS, rows_of, write
from server.llama.llamacpp import LlamaBackend, LlamaOptions

SHORTEST = 16  # tokens of a reply, as in compare
FLATTEST = 0.999  # share of right guesses for which S_lim is still computed


class Guess(NamedTuple):
    """The draft model's first guess at one token of a reply."""

    right: bool
    probability: float


def judged(args: argparse.Namespace) -> list[list[Guess]]:
    """Replies at temperature 0, token by token. Raises DuoError."""
    paths = (args.model, args.draft_model)
    options = [LlamaOptions(path, N_CELLS, N_SEQS, n_threads=args.threads) for path in paths]
    with closing(LlamaBackend(options[0])) as target, closing(LlamaBackend(options[1])) as draft:
        prompts = texts.prompt_ids(target, load(args.prompts, PYTHON))
        written = write(target, prompts, WAYS["temperature 0"], args.max_tokens)
        return [
            [
                _guess(np.asarray(row, np.float64), text.tokens[position])
                for position, row in enumerate(rows_of(draft, text), start=text.n_prompt)
            ]
            for text in written
            if len(text.tokens) - text.n_prompt >= SHORTEST
        ]


def _guess(logits: np.ndarray, token: int) -> Guess:
    best = int(logits.argmax())
    return Guess(best == token, float(1.0 / np.exp(logits - logits[best]).sum()))


def ideal_ms(reply: Sequence[Guess], step_ms: Callable[[int], float], guess_ms: float) -> float:
    """Of the reply after its first token, with the ideal drafter. step_ms: by rows."""
    now, begun, at, base = 0.0, 0.0, 1, 1  # base: the token that the drafter began at, when `begun`
    while at < len(reply):
        there = min(len(reply), base + math.floor((now - begun) / guess_ms + 1e-9))
        n_guesses = max(0, there - at)
        now += step_ms(1 + n_guesses)
        wrong = next((i for i in range(at, at + n_guesses) if not reply[i].right), at + n_guesses)
        at = wrong + 1
        if wrong < len(reply) and not reply[wrong].right:
            base, begun = at, now
    return now


def in_turn_ms(
    reply: Sequence[Guess], step_ms: Callable[[int], float], guess_ms: float, most: int, p_min: float
) -> float:
    """As llama-server drafts: in each step up to `most` guesses, the last of which is surer than p_min. What
    follows a wrong guess is taken to be unsure."""
    now, at = 0.0, 1
    while at < len(reply):
        n_guesses, n_right, goes_on = 0, 0, True
        while goes_on and n_guesses < most and at + n_guesses < len(reply):
            guess = reply[at + n_guesses]
            now += guess_ms
            goes_on = guess.probability >= p_min and guess.right
            n_guesses += guess.probability >= p_min
            n_right += goes_on
        now += step_ms(1 + n_guesses)
        at += n_right + 1
    return now


def by_rows(steps: Mapping[int, float]) -> Callable[[int], float]:
    """Milliseconds of a step by its rows: padded to the next known width, as duo and graphs do."""
    curve = staircase({rows - 1: ms for rows, ms in steps.items()})
    return lambda n: steps[1] * curve(n - 1)


def rows(args: argparse.Namespace, replies: Sequence[Sequence[Guess]]) -> list[list[str]]:
    """Tokens per second in all and in the median of replies, and times plain steps in all."""
    step_ms, guess_ms = by_rows(args.steps), args.guess_ms
    r, v = args.steps[1] / guess_ms, staircase({n - 1: ms for n, ms in args.steps.items()})

    def limited(reply: Sequence[Guess]) -> float:
        a = min(FLATTEST, max(1e-3, statistics.mean(guess.right for guess in reply)))
        return (len(reply) - 1) * args.steps[1] / limit(a, r, v)

    found = {
        "plain": [(len(reply) - 1) * args.steps[1] for reply in replies],
        "S_lim": [limited(reply) for reply in replies],
        "ideal drafter": [ideal_ms(reply, step_ms, guess_ms) for reply in replies],
    }
    for n in args.sweep:
        name = f"one after the other, {n}, p_min {args.p_min:g}"
        found[name] = [in_turn_ms(reply, step_ms, guess_ms, n, args.p_min) for reply in replies]
    return [[name, *_cells(replies, ms, found["plain"])] for name, ms in found.items()]


def _cells(
    replies: Sequence[Sequence[Guess]], ms: Sequence[float], plain: Sequence[float]
) -> tuple[str, str, str]:
    n_tokens = [len(reply) - 1 for reply in replies]
    rates = [1e3 * n / spent for n, spent in zip(n_tokens, ms, strict=True)]
    in_all = 1e3 * sum(n_tokens) / sum(ms)
    return f"{in_all:.1f}", f"{statistics.median(rates):.1f}", f"{sum(plain) / sum(ms):.2f}"


def measure(args: argparse.Namespace) -> program.Result:
    """Raises DuoError."""
    replies = judged(args)
    guesses = [guess for reply in replies for guess in reply[1:]]
    share = sum(guess.right for guess in guesses) / len(guesses)
    what = f"{len(replies)} replies of at most {args.max_tokens} tokens; {share:.3f} of guesses right; r = "
    what += f"{args.steps[1] / args.guess_ms:.1f} guesses in a plain step."
    table = report.table(["", "t/s in all", "t/s, median", "by plain steps"], rows(args, replies), n_words=1)
    return "what no drafter of this speed can exceed", [what, table]


def _steps(text: str) -> dict[int, float]:
    found = {int(rows): float(ms) for rows, _, ms in (one.partition(":") for one in text.split(","))}
    if 1 not in found:
        raise ValueError
    return found


def _parser() -> argparse.ArgumentParser:
    shared = ("model", "draft-model", "threads", "prompts", "max-tokens")
    what = "What no drafter of this speed can exceed."
    parser = program.make_parser("limits", what, *shared, prompts=20, max_tokens=200)
    add = parser.add_argument
    add("--steps", type=_steps, required=True, help="milliseconds of the lead's steps by rows: 1:4.7,4:6.5")
    add("--guess-ms", type=float, required=True, help="milliseconds of one guess")
    add("--sweep", type=program.numbers, default=[8, 12, 16], help="guesses one after the other, at most")
    add("--p-min", type=float, default=0.5, help="of guesses one after the other")
    return parser


main = program.main(_parser, measure)

if __name__ == "__main__":
    sys.exit(main())
