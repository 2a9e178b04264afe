"""Compare duo's texts with llama.cpp's: `python -m benchmarks.equal --model M --draft-model D --prompts 60`.

Both evaluate the same ids on one thread, with an F32 cache and without flash attention. Both read prompts in
equal parts, and evaluate all later tokens in one number of rows. For llama.cpp, llama-cpp-python decodes one
token after the other. The token that ends a text belongs to it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing

from benchmarks import program, report
from benchmarks.prompts import load
from benchmarks.texts import prompt_ids
from server.engine.request import Exactness, GenerationRequest, Speculation
from server.llama.backend import Backend
from server.llama.llamacpp import LlamaBackend
from server.sampling.params import SamplingParams
from tests.model.duet import Duet, counts
from tests.real.plain import PlainDecoder, opened

N_CELLS = 8192  # of each KV cache
STABLE_ROWS = 8  # rows of a width-stable step
HOW: tuple[tuple[str, bool, Exactness], ...] = (
    ("no drafts", False, "default"),
    ("drafts, width-stable", True, "width-stable"),
)


def said(
    target: LlamaBackend, prompts: Sequence[Sequence[int]], n: int, draft: Backend | None, how: Exactness
) -> tuple[list[tuple[int, ...]], str]:
    """Return duo's replies, each from an empty cache, and a text with the number of right guesses.

    Args:
        target: The model.
        prompts: Token ids of its prompts.
        n: Most tokens of a reply.
        draft: The draft model in the lead, beside lookups; None: no guesses.
        how: The requested exactness.
    """
    duet = Duet(target, inline=draft, lookup=draft is not None, n_slots=1)
    replies = list[tuple[int, ...]]()
    accepted = drafted = 0
    for i, prompt in enumerate(prompts):
        request = GenerationRequest(
            list(prompt),
            SamplingParams(0.0),
            n,
            stop_tokens=target.vocab.eog,
            speculation=Speculation(exactness=how),
        )
        outcomes = duet.run(request)
        replies.append(outcomes[0].tokens)
        right, made = counts(outcomes)
        accepted, drafted = accepted + right, drafted + made
        for slot in duet.engine.slots.list():
            duet.engine.slots.erase(slot.id)
        print(f"{how}, {i + 1} of {len(prompts)}", end="\r", flush=True)
    return replies, report.accepted(accepted, drafted)


def measure(args: argparse.Namespace) -> program.Result:
    """Compare the texts and return the section. Raises DuoError."""
    program.check_files(args.model, args.draft_model)
    with closing(opened(args.model, N_CELLS)) as target, closing(opened(args.draft_model, N_CELLS)) as draft:
        prompts = prompt_ids(target, load(args.prompts))
        n, ends = args.max_tokens, target.vocab.eog
        widths = 1, STABLE_ROWS
        with closing(PlainDecoder(args.model, N_CELLS)) as plain:
            expected = [plain.texts(one, n, widths=widths, ends=ends) for one in prompts]
        rows = list[tuple[str, ...]]()
        for i, (name, who, how) in enumerate(HOW):
            replies, guesses = said(target, prompts, n, draft if who else None, how)
            equal = sum(reply == texts[i] for reply, texts in zip(replies, expected, strict=True))
            rows.append((name, str(widths[i]), guesses, f"{equal} of {len(prompts)}"))
    files = f"{report.model_line(args.model)}; draft {report.model_line(args.draft_model)}"
    what = f"{files}; {sum(map(len, prompts)):,} tokens of prompts, at most {n} of each reply."
    heads = "duo | llama.cpp's rows | drafts accepted | same text"
    return f"{args.model.stem}, equal texts", [what, report.table(heads, rows)]


def _parser() -> argparse.ArgumentParser:
    shared = "model", "draft-model", "prompts"
    parser = program.make_parser("equal", "duo's texts beside llama.cpp's.", *shared)
    parser.add_argument("--max-tokens", type=int, default=64, help="of each reply")
    parser.set_defaults(prompts=60)
    return parser


main = program.main(_parser, measure)

if __name__ == "__main__":
    sys.exit(main())
