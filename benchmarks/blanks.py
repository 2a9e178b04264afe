"""Find a substitute for pictures in drafters: `python -m benchmarks.blanks --model M --draft-model D`.

A paragraph stands for the picture. The target reads the paragraph; the draft model reads as many equal
tokens. In the target's replies to a question about the paragraph, count how often the draft model's likeliest
token is the target's next one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import cycle
from pathlib import Path

import numpy as np

from benchmarks import program, report
from benchmarks.prompts import FOLDER
from server.doctor.examination import guesses
from server.llama.backend import PAD, Batch, Vocabulary
from server.llama.llamacpp import LlamaBackend
from server.llama.options import LlamaOptions

TEXTS = {"spaces": " ", "line feeds": "\n", "full stops": ".", "ellipses": "…", "hyphens": "-"}
"""Placeholders, by their names."""
BEGINNING, SEEN = "beginnings of text", "the paragraph itself"
QUESTIONS = ("What do you see? Describe it in two sentences.", "What does this show?", "Name what is in it.")
DOCUMENT_CELLS = 2048  # KV cells
MOST_TOKENS = 48  # of a reply


def placeholders(vocab: Vocabulary) -> dict[str, int]:
    """Return tokens to be read in place of each position of a picture, by their names."""
    found = {name: vocab.tokenize(text, special=False)[-1] for name, text in TEXTS.items()}
    return found | {BEGINNING: PAD if vocab.bos is None else vocab.bos}


def asked(vocab: Vocabulary, shown: Sequence[int], question: str) -> list[int]:
    """Return the tokens of a prompt with `shown` and `question`."""
    before = vocab.tokenize("<|im_start|>user\n", special=True)
    after = vocab.tokenize(f"\n{question}<|im_end|>\n<|im_start|>assistant\n", special=True)
    return [*before, *shown, *after]


def reply(target: LlamaBackend, prompt: Sequence[int]) -> list[int]:
    """Return the target's reply at temperature 0, at most MOST_TOKENS tokens."""
    tokens, position, pending = list[int](), 0, list(prompt)
    while len(tokens) < MOST_TOKENS and not target.vocab.eog.intersection(tokens[-1:]):
        batch = Batch()
        batch.extend(0, position, pending, 1)
        position += len(pending)
        pending = [int(np.argmax(target.decode(batch)[0]))]
        tokens += pending
    target.trim(0, 0)
    return tokens


def compare(target: LlamaBackend, draft: LlamaBackend, n: int) -> tuple[Mapping[str, int], int]:
    """Return the number of right guesses by placeholder, and the number of guesses with each."""
    paragraphs = [text for text in (FOLDER / "document.txt").read_text().split("\n\n") if len(text) > 200][:n]
    shown = [target.vocab.tokenize(text, special=False) for text in paragraphs]
    pairs = list(zip(shown, cycle(QUESTIONS), strict=False))
    said = [reply(target, asked(target.vocab, one, question)) for one, question in pairs]
    blanks = placeholders(target.vocab)
    right, n_guesses = dict.fromkeys((*blanks, SEEN), 0), 0
    for (tokens, question), said_here in zip(pairs, said, strict=True):
        n_guesses += max(0, len(said_here) - 1)
        for name in right:
            read = [blanks[name]] * len(tokens) if name in blanks else tokens
            found, _ = guesses(draft, asked(target.vocab, read, question), said_here)
            right[name] += sum(guess.right for guess in found)
    return right, n_guesses


def measure(args: argparse.Namespace) -> program.Result:
    """Compare and return the section. Raises DuoError."""
    program.check_files(args.model, args.draft_model)
    with (
        closing(_open(args.model, args.threads)) as target,
        closing(_open(args.draft_model, args.threads)) as draft,
    ):
        right, n = compare(target, draft, args.prompts)
    rows = [(name, str(count), report.number(count / n, 3)) for name, count in right.items()]
    table = report.table(f"read by {args.draft_model.name} | right of {n} | share", rows)
    return "placeholders of pictures", [f"{report.model_line(args.model)}; {args.prompts} paragraphs", table]


def _open(path: Path, n_threads: int) -> LlamaBackend:
    return LlamaBackend(LlamaOptions(path, DOCUMENT_CELLS, 1, n_threads=n_threads))


def _parser() -> argparse.ArgumentParser:
    shared = "model", "draft-model", "threads", "prompts"
    return program.make_parser(
        "blanks", "What drafters should read in place of a picture.", *shared, prompts=20
    )


main = program.main(_parser, measure)

if __name__ == "__main__":
    sys.exit(main())
