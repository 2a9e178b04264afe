"""How often a prediction block is right at each depth, in duo and in llama-server.

`python -m benchmarks.depths --llama-server PATH --model FILE --sweep 1,3,5`: both draft chains of one length
in every step, greedily, after equal token ids. Of depth k: the steps whose first k guesses were accepted, of
those whose first k - 1 were. Steps whose chain the longest reply cuts do not count, nor does the last one.

llama-server guesses at the beginning of a prompt from the last hidden row of the request before, if there was
one; with --fresh each prompt is asked of a new one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any

from benchmarks import program, report, texts
from benchmarks.client import call
from benchmarks.processes import Command, flags, llama_server, options_of, start
from benchmarks.prompts import PYTHON, load
from server.engine.engine import Engine
from server.engine.events import Committed, Event
from server.engine.request import GenerationRequest
from server.engine.scheduler import Limits
from server.errors import StartupError
from server.llama.llamacpp import LlamaBackend, LlamaOptions
from server.llama.mtp import LlamaBlock
from server.llama.options import Weights
from server.llama.with_block import WithBlock
from server.speculation.policy import Policy
from server.speculation.sources.block_draft import BlockDraft
from server.speculation.speculator import Speculator

CTX_SIZE = 4096


@dataclass(slots=True)
class Said:
    """One reply. steps: where each begins, its guesses, and how many of them were accepted."""

    tokens: list[int] = field(default_factory=list[int])
    steps: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])

    def accepted(self, n: int) -> list[int]:
        """Of the steps with n guesses, without the last one."""
        return [a for start, drafted, a in self.steps if drafted == n and start + a + 1 < len(self.tokens)]


def by_duo(args: argparse.Namespace, n: int) -> list[Said]:
    """Raises DuoError."""
    options = LlamaOptions(args.model, CTX_SIZE, 2, n_threads=args.threads, weights=Weights(mtp=True))
    with closing(LlamaBackend(options)) as target:
        if not target.model.n_blocks:
            raise StartupError(
                f"{args.model} has no prediction block: benchmarks.with_block makes one that has"
            )
        with closing(LlamaBlock(target)) as block:
            model = WithBlock(target, block)
            prompts = texts.prompt_ids(target, load(args.prompts, PYTHON))
            return [reply(model, prompt, n, args.max_tokens) for prompt in prompts]


def reply(model: WithBlock, prompt: Sequence[int], n: int, max_tokens: int) -> Said:
    events: list[Event] = []
    policy = Policy(leaves=1, lookup=False, gate=False)
    engine = Engine(
        model,
        Speculator(policy, inline=BlockDraft(model, most=n)),
        lambda _, event: events.append(event),
        n_slots=1,
        limits=Limits(n_batch=model.n_batch, draft_max=n, leaves=1),
    )
    stop = model.vocab.eog
    engine.submit(0, GenerationRequest(prompt, texts.GREEDY, max_tokens, stop_tokens=stop))
    while engine.step():
        pass
    for seq in range(model.n_seqs):
        model.trim(seq, 0)
    said = Said()
    for i, tokens in enumerate(event.tokens for event in events if isinstance(event, Committed)):
        left = max_tokens - len(said.tokens) - 1
        said.steps.append(
            (len(said.tokens), min(n, left) if i else 0, len(tokens) - 1)
        )  # first: the prompt's
        said.tokens += tokens
    return said


def by_llama_server(args: argparse.Namespace, prompts: Sequence[Sequence[int]], n: int) -> list[Said]:
    """Raises DuoError."""
    size = options_of(args, "model", "threads", parallel=1, ctx_size=CTX_SIZE)
    drafting = flags(spec_type="draft-mtp", spec_draft_n_max=n, spec_draft_p_min=0, flash_attn="off")
    command = Command("llama-server", llama_server(args.llama_server, *drafting, **size))
    replies: list[Said] = []
    groups = [[prompt] for prompt in prompts] if args.fresh else [prompts]
    for group in groups:
        with ExitStack() as stack:
            [server] = start(stack, [command])
            replies += [asked(server.port, prompt, args.max_tokens) for prompt in group]
    return replies


def asked(port: int, prompt: Sequence[int], max_tokens: int) -> Said:
    """A step is known by the counts that its tokens come with. Raises ReplyError."""
    body: dict[str, Any] = {"prompt": list(prompt), "n_predict": max_tokens, "temperature": 0}
    body |= {"cache_prompt": False, "stream": True, "timings_per_token": True, "return_tokens": True}
    said, before = Said(), (0, 0)
    for _, line in call(port, "/completion", body):
        if not line.startswith(b"data:"):
            continue
        chunk: dict[str, Any] = json.loads(line[5:])
        timings: dict[str, int] = chunk["timings"]
        counts = timings.get("draft_n", 0), timings.get("draft_n_accepted", 0)
        if counts != before and not chunk["stop"]:
            said.steps.append((len(said.tokens), counts[0] - before[0], counts[1] - before[1]))
            before = counts
        said.tokens += [] if chunk["stop"] else chunk["tokens"]
    return said


def shares(replies: Sequence[Said], n: int) -> list[tuple[int, int]]:
    """Of each depth: how many guesses were right, and how many had only right ones before them."""
    accepted = [n_accepted for said in replies for n_accepted in said.accepted(n)]
    return [(sum(a >= k for a in accepted), sum(a >= k - 1 for a in accepted)) for k in range(1, n + 1)]


def measure(args: argparse.Namespace) -> program.Result:
    """Raises DuoError."""
    args.llama_server = program.binary(args.llama_server)
    program.check_files(args.model)
    with closing(LlamaBackend(LlamaOptions(args.model, CTX_SIZE, 1))) as target:
        prompts = texts.prompt_ids(target, load(args.prompts, PYTHON))
    rows: list[list[str]] = []
    n_equal = 0
    for n in args.sweep:
        both = by_duo(args, n), by_llama_server(args, prompts, n)
        n_equal += sum(a.tokens == b.tokens for a, b in zip(*both, strict=True))
        for depth, (ours, theirs) in enumerate(zip(*(shares(one, n) for one in both), strict=True), start=1):
            ratio = ours[0] * theirs[1] / (ours[1] * theirs[0] or 1)
            rows.append(
                [str(n), str(depth), *(report.accepted(*one) for one in (ours, theirs)), f"{ratio:.3f}"]
            )
    what = f"{report.model_line(args.model)}; {len(prompts)} prompts, replies of at most {args.max_tokens} "
    what += f"tokens; texts equal: {n_equal} of {len(prompts) * len(args.sweep)}."
    heads = "chain | depth | duo | llama-server | ratio"
    return "a prediction block by depth", [what, report.table(heads, rows, n_words=0)]


def _parser() -> argparse.ArgumentParser:
    shared = ("llama-server", "model", "threads", "prompts", "max-tokens")
    what = "Acceptance of a prediction block by depth."
    parser = program.make_parser("depths", what, *shared, prompts=20, max_tokens=200)
    parser.add_argument("--sweep", type=program.numbers, default=[1, 3], help="lengths of chains")
    parser.add_argument("--fresh", action="store_true", help="a new llama-server for each prompt")
    return parser


main = program.main(_parser, measure)

if __name__ == "__main__":
    sys.exit(main())
