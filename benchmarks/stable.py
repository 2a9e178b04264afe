"""Is the text the same whatever drafts? `python -m benchmarks.stable [--prompts 20]`.

One lead with three drafters on the bus, a good one, another model and one that is mostly wrong, and a second
lead that drafts by itself. Every prompt is asked without drafts and with each of them, in both tiers of
exactness, several times over; what counts is how many texts equal the first one without drafts of their tier.
On GPUs the default tier shows what widths of steps do to near-ties; the width-stable one must show nothing.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import report, texts
from benchmarks.client import Reply, ask
from benchmarks.processes import Command, Process, duo
from benchmarks.prompts import Prompt, load
from drafters.settings import BUNDLED_MODEL as BUNDLED_DRAFT
from server.embedded import EmbeddedServer
from server.errors import DuoError
from server.flags import n_cores
from server.llama.llamacpp import LlamaBackend, LlamaOptions
from server.settings import BUNDLED_MODEL

CTX_SIZE = 4096
TIERS = ("width-stable", "default")
BUS, SYNC = "bus", "sync"  # the two leads


@dataclass(frozen=True, slots=True)
class Way:
    """One way to draft: which lead is asked, and what its `speculative` field says beside the tier."""

    name: str
    lead: str
    wanted: Mapping[str, Any]


WAYS = (
    Way("none", BUS, {"n_max": 0}),
    Way("draft model", BUS, {"drafters": ["good"]}),
    Way("another model", BUS, {"drafters": ["other"]}),
    Way("mostly wrong", BUS, {"drafters": ["wrong"]}),
    Way("in the lead", SYNC, {"drafters": ["draft"]}),
)


@dataclass(frozen=True, slots=True)
class Count:
    """Of the replies in one way and tier: how many had the text without drafts; tokens drafted, accepted."""

    n_equal: int
    n_replies: int
    n_drafted: int
    n_accepted: int


def leads(args: argparse.Namespace, redis_url: str) -> list[Command]:
    common = ("--model", str(args.model), "--threads", str(args.threads), "--ctx-size", str(CTX_SIZE))
    common += ("--parallel", "1", "--no-lookup")
    sync = ("--draft-mode", "sync", "--draft-model", str(args.draft_model))
    return [
        Command(BUS, (*_on(args.device), *duo("serve", *common, "--redis", redis_url))),
        Command(SYNC, (*_on(args.device), *duo("serve", *common, *sync))),
    ]


def drafters(args: argparse.Namespace, redis_url: str, known: Path) -> list[Command]:
    own = (sys.executable, "-m", "drafters", "--redis", redis_url, "--name")
    wrong = ("--kind", "replay", "--texts", str(known), "--accept", "0.3", "--td-ms", "0.2")
    return [
        Command("good", (*_on(args.draft_device), *own, "good", "--model", str(args.draft_model))),
        Command("other", (*_on(args.draft_device), *own, "other", "--model", str(args.other_model))),
        Command("wrong", (*own, "wrong", *wrong, "--vocab-from", str(args.model))),
    ]


def _on(device: int | None) -> tuple[str, ...]:
    return () if device is None else ("env", f"CUDA_VISIBLE_DEVICES={device}")


def measure(args: argparse.Namespace) -> str:
    """Run it all; returns markdown. Raises DuoError."""
    prompts = load(args.prompts)
    with ExitStack() as stack:
        known = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="duo-texts-"))) / "texts.jsonl"
        with closing(LlamaBackend(LlamaOptions(args.model, CTX_SIZE, 1, n_threads=args.threads))) as backend:
            texts.save(texts.record(backend, prompts, args.max_tokens), known)
        redis = stack.enter_context(EmbeddedServer())
        running = {c.name: stack.enter_context(Process(c)) for c in leads(args, redis.url)}
        crew = [stack.enter_context(Process(command)) for command in drafters(args, redis.url, known)]
        running[SYNC].wait_ready()
        running[BUS].wait_ready(n_drafters=len(crew))
        counts: dict[tuple[str, str], Count] = {}
        for tier in TIERS:
            replies = {way.name: _replies(args, running[way.lead], way, tier, prompts) for way in WAYS}
            for name, own in replies.items():
                counts[name, tier] = count(own, replies["none"][: len(prompts)])
                print(f"{tier}, {name}: {counts[name, tier]}", flush=True)
    return table(counts)


def _replies(
    args: argparse.Namespace, lead: Process, way: Way, tier: str, prompts: Sequence[Prompt]
) -> list[Reply]:
    """All prompts, then all once more, and so on."""
    more = {"speculative": {**way.wanted, "exactness": tier}}
    return [ask(lead.port, p, args.max_tokens, more=more) for _ in range(args.repeats) for p in prompts]


def count(replies: Sequence[Reply], first: Sequence[Reply]) -> Count:
    """Pure. replies: of as many prompts as `first`, perhaps several times over."""
    equal = [reply.text == first[i % len(first)].text for i, reply in enumerate(replies)]
    drafted, accepted = sum(r.n_drafted for r in replies), sum(r.n_accepted for r in replies)
    return Count(sum(equal), len(equal), drafted, accepted)


def table(counts: Mapping[tuple[str, str], Count]) -> str:
    """Markdown: ways to draft by tiers."""
    lines = [f"| drafts | {' | '.join(TIERS)} | drafts accepted |", "| --- | ---: | ---: | ---: |"]
    for way in WAYS:
        own = [counts[way.name, tier] for tier in TIERS]
        equal = [f"{c.n_equal} of {c.n_replies}" for c in own]
        drafted, accepted = sum(c.n_drafted for c in own), sum(c.n_accepted for c in own)
        lines.append(f"| {way.name} | {' | '.join(equal)} | {accepted} of {drafted} |")
    return "\n".join(lines)


def _flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stable", description="Equal texts.")
    parser.add_argument("--model", type=Path, default=BUNDLED_MODEL, help="GGUF file (default: bundled)")
    parser.add_argument("--draft-model", type=Path, default=BUNDLED_DRAFT, help="likewise, of the drafter")
    parser.add_argument("--other-model", type=Path, default=BUNDLED_MODEL, help="of another drafter")
    parser.add_argument("--device", type=int, help="number of the CUDA device of the leads' models")
    parser.add_argument("--draft-device", type=int, help="likewise, of the drafters' models")
    parser.add_argument("--threads", type=int, default=n_cores(), help="of the leads' models")
    parser.add_argument("--prompts", type=int, default=20, help="how many different prompts")
    parser.add_argument("--repeats", type=int, default=2, help="how often each is asked in each way")
    parser.add_argument("--max-tokens", type=int, default=128, help="longest reply")
    parser.add_argument("--append", type=Path, help="append the result to this markdown file")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    args = _flags().parse_args(arguments)
    what = (
        f"{report.model_line(args.model)}; drafts by {report.model_line(args.draft_model)} and "
        f"{report.model_line(args.other_model)}; temperature 0. Replies whose text is that without drafts."
    )
    try:
        parts = [what, measure(args)]
    except DuoError as error:
        print(f"stable: {error.message}", file=sys.stderr)
        return 1
    report.publish(report.section("equal texts", "benchmarks.stable", arguments, parts), args.append)
    return 0


if __name__ == "__main__":
    sys.exit(main())
