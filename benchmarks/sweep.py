"""Speed-ups over acceptance, speed and latency of drafters, beside those of the formulas (formulas.py):
`python -m benchmarks.sweep [--accept .6,.8,.9] [--r 4,8,16] [--drafters 1,2] [--crashes 2:1,5:1]`.

Real processes: a lead with replay drafters over Redis Streams beside a lead without, asked in turn. The
drafters sleep for td and then say what they know, so they take next to no CPU: r is what it is set to, and a
machine with few cores shows what a drafter on a machine of its own would bring.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import program, report, steps, texts
from benchmarks.contest import Heat, run, standings, warm_up
from benchmarks.faults import Crew, parse_schedule
from benchmarks.formulas import Curve, Scheme, limit, speedup, staircase, with_outages
from benchmarks.inflate import bundled_400m
from benchmarks.processes import Command, Options, drafter, duo, options_of, start
from benchmarks.prompts import PYTHON, Prompt, load
from server.errors import StartupError
from server.flags import n_cores
from server.llama.llamacpp import LlamaBackend, LlamaOptions
from server.local.embedded import EmbeddedServer

COST_ROUNDS = 10  # of every width, from which v(k) is taken
COST_CONTEXT = 256  # tokens in the KV cache meanwhile


@dataclass(frozen=True, slots=True)
class Setting:
    """a, r and latency as in formulas.py, of each of the drafters."""

    a: float
    r: float
    latency: float = 0.0
    n_drafters: int = 1


@dataclass(frozen=True, slots=True)
class Row:
    """measured: time without drafters by time with them, of the n_equal heats of n_heats with one text: a
    replay drafter knows no other. expected: by formulas.py for one drafter, with the best k_max up to
    --draft-max and drafters present for the share `present` of the time."""

    setting: Setting
    measured: float | None
    expected: float
    limit: float
    present: float
    n_equal: int
    n_heats: int


@dataclass(frozen=True, slots=True)
class Target:
    """The model by itself: tt, measured v(k) by k drafted tokens, and prompts with its texts."""

    tt_ms: float
    costs: dict[int, float]
    prompts: list[Prompt]
    texts: list[tuple[int, ...]]

    @property
    def v(self) -> Curve:
        return staircase(self.costs)


def measure(args: argparse.Namespace) -> program.Result:
    """Raises DuoError, OSError."""
    args.model = args.model or bundled_400m()
    target = study(args)
    with ExitStack() as stack:
        known = stack.enter_context(texts.directory())
        texts.save(target.texts, known)
        redis = stack.enter_context(EmbeddedServer())
        plain, drafted = start(stack, leads(args, redis.url))
        warm_up([plain, drafted])
        rows: list[Row] = []
        for n, latency, a, r in itertools.product(args.drafters, args.latency, args.accept, args.r):
            setting = Setting(a, r, latency, n)
            crew = drafters(args.model, setting, target.tt_ms, redis.url, known)
            with Crew(crew, args.crashes, lambda: len(drafted.health().get("drafters", []))) as present:
                heats = run([plain, drafted], target.prompts, args.max_tokens)
                rows.append(row(setting, heats, target, args.draft_max, present.share_present()))
            print(*_cells(rows[-1]), flush=True)
    return "replay drafters, real processes", [describe(args, target), table(rows)]


def study(args: argparse.Namespace) -> Target:
    """Measure the model and record its texts, before anything else runs. Only prompts whose replies are long
    count: short ones contain few mistakes. Raises StartupError if there are none."""
    prompts: list[Prompt] = []
    said: list[tuple[int, ...]] = []
    options = LlamaOptions(args.model, texts.CTX_SIZE, 1, n_threads=args.threads)
    with closing(LlamaBackend(options)) as backend:
        costs = steps.measure(backend, range(1, args.draft_max + 2), COST_CONTEXT, COST_ROUNDS)
        for prompt in load(subject=PYTHON):
            ids = texts.prompt_ids(backend, [prompt])[0]
            text = texts.record(backend, [prompt], args.max_tokens)[0]
            if len(text) - len(ids) >= args.max_tokens / 2:
                prompts.append(prompt)
                said.append(text)
            if len(prompts) == args.prompts:
                break
    if not prompts:
        raise StartupError(f"no reply is half as long as {args.max_tokens} tokens: lower --max-tokens")
    return Target(costs[0].ms, {cost.width - 1: cost.ratio for cost in costs}, prompts, said)


def leads(args: argparse.Namespace, redis_url: str) -> tuple[Command, Command]:
    """Without and with drafters."""
    common = options_of(args, "model", "threads", ctx_size=texts.CTX_SIZE, parallel=1, no_lookup=True)
    drafts: Options = {"redis": redis_url, "draft_mode": "async", "draft_max": args.draft_max}
    return (
        Command("without drafters", duo("serve", draft_max=0, **common)),
        Command("with drafters", duo("serve", **common, **drafts)),
    )


def drafters(model: Path, setting: Setting, tt_ms: float, redis_url: str, known: Path) -> list[Command]:
    replay: Options = {"kind": "replay", "redis": redis_url, "texts": known, "vocab_from": model}
    replay |= {"accept": f"{setting.a:g}", "td_ms": f"{tt_ms / setting.r:.4g}"}
    replay |= {"latency_ms": f"{tt_ms * setting.latency:.4g}"}
    return [drafter(f"replay-{i}", seed=i, **replay) for i in range(1, setting.n_drafters + 1)]


def row(setting: Setting, heats: Sequence[Heat], target: Target, draft_max: int, present: float) -> Row:
    """Pure."""
    equal = [heat for heat in heats if len({reply.text for reply in heat.replies}) == 1]
    plain, drafted = (one.total_rate for one in standings(("plain", "drafted"), equal)) if equal else (0, 0)
    return Row(
        setting,
        drafted / plain if plain and drafted else None,
        with_outages(expected(setting, target.v, draft_max), present),
        limit(setting.a, setting.r, target.v),
        present,
        len(equal),
        len(heats),
    )


def expected(setting: Setting, v: Curve, draft_max: int) -> float:
    """With the best k_max up to draft_max; 1 where none pays."""
    one = Scheme(setting.a, setting.r, setting.latency, v)
    return max(1.0, *(speedup(replace(one, k_max=k)) for k in range(1, draft_max + 1)))


def table(rows: Sequence[Row]) -> str:
    """Markdown."""
    heads = "drafters | L / tt | a | r | present | speed-up | formula | η_async | limit | η | same text"
    return report.table(heads, [_cells(row) for row in rows], n_words=0)


def _cells(row: Row) -> list[str]:
    s, speed = row.setting, row.measured or math.nan
    given = [f"{value:g}" for value in (s.n_drafters, s.latency, s.a, s.r)]
    results = (speed, row.expected, speed / row.expected, row.limit, speed / row.limit)
    found = [report.percent(row.present), *(report.number(value, 2) for value in results)]
    return [*given, *found, f"{row.n_equal} of {row.n_heats}"]


def describe(args: argparse.Namespace, target: Target) -> str:
    curve = ", ".join(f"v({k}) {ratio:.2f}" for k, ratio in target.costs.items() if k)
    return (
        f"{report.model_line(args.model)}; {args.threads} threads; tt {target.tt_ms:.1f} ms, {curve}; "
        f"at most {args.draft_max} drafted tokens per step; temperature 0, {args.prompts} prompts of "
        f"at most {args.max_tokens} tokens. Formula and limit are for one drafter."
    )


def _parser() -> argparse.ArgumentParser:
    spare = max(1, n_cores() - 1)  # the lead's threads wait for each other, so drafters need a core
    what = "Replay drafters against the formulas."
    shared = ("inflated", "threads", "prompts", "max-tokens")
    parser = program.make_parser("sweep", what, *shared, threads=spare, prompts=4)
    add = parser.add_argument
    add("--accept", type=program.floats, default=[0.6, 0.8, 0.9], help="acceptances a")
    add("--r", type=program.floats, default=[4.0, 8.0, 16.0], help="drafted tokens per plain step")
    add("--latency", type=program.floats, default=[0.0], help="one-way latencies, in plain steps")
    add("--drafters", type=program.numbers, default=[1], help="numbers of drafters")
    crashes = "kill -9 every drafter this many seconds into each point, for this long: 2:1,5:1"
    add("--crashes", type=parse_schedule, default=(), help=crashes)
    add("--draft-max", type=int, default=8, help="most drafted tokens verified per step")
    return parser


main = program.main(_parser, measure)

if __name__ == "__main__":
    sys.exit(main())
