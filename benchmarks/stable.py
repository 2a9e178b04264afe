"""Is the text the same whatever drafts? `python -m benchmarks.stable [--prompts 20]`.

One lead with three drafters on the bus (a good one, another model, one that is mostly wrong), and a second
lead with a draft model of its own. Every prompt is asked without drafts and with each of them, in both tiers
of exactness, --rounds times; counted are texts equal to the first one without drafts of their tier.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks import program, report, texts
from benchmarks.client import Reply, ask
from benchmarks.processes import Command, Options, Process, drafter, duo, options_of
from benchmarks.prompts import PYTHON, Prompt, load
from server.local.embedded import EmbeddedServer
from server.settings import BUNDLED_MODEL

TIERS = ("width-stable", "default")
BUS, SYNC = "bus", "sync"  # the two leads
NONE = "none"


@dataclass(frozen=True, slots=True)
class Way:
    """One way to draft: the lead to ask, and its `speculative` field without the tier."""

    name: str
    lead: str
    wanted: Mapping[str, Any]


WAYS = (
    Way(NONE, BUS, {"n_max": 0}),
    Way("draft model", BUS, {"drafters": ["good"]}),
    Way("another model", BUS, {"drafters": ["other"]}),
    Way("mostly wrong", BUS, {"drafters": ["wrong"]}),
    Way("in the lead", SYNC, {"drafters": ["draft"]}),
)


Said: TypeAlias = Mapping[tuple[str, str], Sequence[Reply]]
"""Replies by the name of a way and by tier, to all prompts round by round."""


def leads(args: argparse.Namespace, redis_url: str) -> list[Command]:
    common = options_of(args, "device", "model", "threads", ctx_size=texts.CTX_SIZE, parallel=1)
    common["no_lookup"] = True
    return [
        Command(BUS, duo("serve", redis=redis_url, **common)),
        Command(SYNC, duo("serve", draft_mode="sync", draft_model=args.draft_model, **common)),
    ]


def drafters(args: argparse.Namespace, redis_url: str, known: Path) -> list[Command]:
    wrong: Options = {"kind": "replay", "texts": known, "accept": 0.3, "td_ms": 0.2, "vocab_from": args.model}
    return [
        drafter("good", device=args.draft_device, redis=redis_url, model=args.draft_model),
        drafter("other", device=args.draft_device, redis=redis_url, model=args.other_model),
        drafter("wrong", redis=redis_url, **wrong),
    ]


def compare(args: argparse.Namespace) -> str:
    """Run all; returns a table. Raises DuoError."""
    prompts = load(args.prompts, PYTHON)
    with ExitStack() as stack:
        known = stack.enter_context(texts.directory())
        texts.save(texts.record_by(args.model, args.threads, prompts, args.max_tokens), known)
        redis = stack.enter_context(EmbeddedServer())
        running = {c.name: stack.enter_context(Process(c)) for c in leads(args, redis.url)}
        crew = [stack.enter_context(Process(command)) for command in drafters(args, redis.url, known)]
        running[SYNC].wait_ready()
        running[BUS].wait_ready(n_drafters=len(crew))
        said: dict[tuple[str, str], list[Reply]] = {}
        for tier in TIERS:
            for way in WAYS:
                print(f"{tier}, {way.name}", flush=True)
                said[way.name, tier] = _replies(args, running[way.lead], way, tier, prompts)
    return table(said, len(prompts))


def _replies(
    args: argparse.Namespace, lead: Process, way: Way, tier: str, prompts: Sequence[Prompt]
) -> list[Reply]:
    """Round by round."""
    more = {"speculative": {**way.wanted, "exactness": tier}}
    return [ask(lead.port, p, args.max_tokens, more=more) for _ in range(args.rounds) for p in prompts]


def table(said: Said, n_prompts: int) -> str:
    """Markdown: ways to draft by tiers. Counted are the replies with the text without drafts."""
    rows: list[list[str]] = []
    for name in (way.name for way in WAYS):
        cells = [name]
        for tier in TIERS:
            first = [reply.text for reply in said[NONE, tier][:n_prompts]]
            equal = [reply.text == first[i % n_prompts] for i, reply in enumerate(said[name, tier])]
            cells.append(f"{sum(equal)} of {len(equal)}")
        own = [reply for tier in TIERS for reply in said[name, tier]]
        n_accepted, n_drafted = sum(r.n_accepted for r in own), sum(r.n_drafted for r in own)
        rows.append([*cells, f"{n_accepted} of {n_drafted}"])
    return report.table(["drafts", *TIERS, "drafts accepted"], rows)


def measure(args: argparse.Namespace) -> program.Result:
    """Raises DuoError."""
    what = (
        f"{report.model_line(args.model)}; drafts by {report.model_line(args.draft_model)} and "
        f"{report.model_line(args.other_model)}; temperature 0. Replies with the text without drafts."
    )
    return "equal texts", [what, compare(args)]


def _parser() -> argparse.ArgumentParser:
    shared = ("model", "draft-model", "device", "draft-device", "threads", "prompts", "rounds", "max-tokens")
    parser = program.make_parser("stable", "Equal texts with any drafts.", *shared, prompts=20, rounds=2)
    parser.add_argument("--other-model", type=Path, default=BUNDLED_MODEL, help="of another drafter")
    return parser


main = program.main(_parser, measure)

if __name__ == "__main__":
    sys.exit(main())
