"""Real processes: a lead with replay drafters over Redis Streams beside the same lead without, asked in turn.

The drafters take no CPU worth mentioning: they sleep for td and then say what they know. So r is what it is
set to, and a machine with few cores shows what a drafter on a machine of its own would bring.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from benchmarks import demo, steps, texts
from benchmarks.contest import Heat, run
from benchmarks.crashes import Crash, Crew
from benchmarks.formulas import Curve, limit, staircase, with_outages
from benchmarks.processes import Command, Process, duo
from benchmarks.prompts import Prompt, load
from benchmarks.renewal import Scheme, speedup
from benchmarks.report import model_line
from server.embedded import EmbeddedServer
from server.errors import StartupError
from server.llama.backend import Backend
from server.llama.llamacpp import LlamaBackend, LlamaOptions

CTX_SIZE = 4096
COST_ROUNDS = 10
COST_CONTEXT = 256
WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Bench:
    """What stays the same over all points."""

    model: Path
    threads: int
    draft_max: int
    max_tokens: int
    n_prompts: int


@dataclass(frozen=True, slots=True)
class Setting:
    """a, r, latency and h as in formulas.py, of each of the drafters."""

    a: float
    r: float
    latency: float = 0.0
    h: float = 0.0
    n_drafters: int = 1


@dataclass(frozen=True, slots=True)
class Row:
    """measured: time without drafters over time with them, of the n_equal heats of n_heats that had the same
    text without and with: a drafter that replays knows no other. expected: by renewal.py for one drafter,
    with the best k_max up to the bench's and drafters present for the share `present` of the time."""

    setting: Setting
    measured: float | None
    expected: float
    limit: float
    present: float
    n_equal: int
    n_heats: int


@dataclass(frozen=True, slots=True)
class Target:
    """The model by itself: tt, v(k) for k drafted tokens as measured, and the prompts with what it says."""

    tt_ms: float
    costs: dict[int, float]
    prompts: list[Prompt]
    texts: list[tuple[int, ...]]

    @property
    def v(self) -> Curve:
        return staircase(self.costs)


@dataclass(frozen=True, slots=True)
class Results:
    target: Target
    rows: list[Row]


def inflated_model() -> Path:
    """The bundled target at the cost of a 400M-parameter one, made once."""
    return demo.cached_model(Console(stderr=True))


def measure(bench: Bench, settings: Sequence[Setting], schedule: Sequence[Crash]) -> Results:
    """Raises DuoError."""
    target = study(bench)
    with ExitStack() as stack:
        known = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="duo-texts-"))) / "texts.jsonl"
        texts.save(target.texts, known)
        redis = stack.enter_context(EmbeddedServer())
        plain, drafted = (stack.enter_context(Process(command)) for command in leads(bench, redis.url))
        for lead in (plain, drafted):
            lead.wait_ready()
        run([plain, drafted], target.prompts[:1], WARM_UP_TOKENS)
        rows: list[Row] = []
        for setting in settings:
            crew = drafters(bench, setting, target.tt_ms, redis.url, known)
            with Crew(crew, schedule, lambda: len(drafted.health().get("drafters", []))) as present:
                heats = run([plain, drafted], target.prompts, bench.max_tokens)
                rows.append(row(setting, heats, target, bench.draft_max, present.share_present()))
            print(line(rows[-1]), flush=True)
        return Results(target, rows)


def study(bench: Bench) -> Target:
    """Measure the model and let it speak, before anything else runs."""
    options = LlamaOptions(bench.model, CTX_SIZE, 1, n_threads=bench.threads)
    with closing(LlamaBackend(options)) as backend:
        widths = range(1, bench.draft_max + 2)
        costs = steps.measure(backend, widths, COST_CONTEXT, COST_ROUNDS)
        prompts, said = _talkative(backend, bench)
    return Target(costs[0].ms, {cost.width - 1: cost.ratio for cost in costs}, prompts, said)


def _talkative(backend: Backend, bench: Bench) -> tuple[list[Prompt], list[tuple[int, ...]]]:
    """Prompts whose replies are long, with the texts: a few short replies tell of a few mistakes only.
    Raises StartupError if there are none."""
    prompts: list[Prompt] = []
    said: list[tuple[int, ...]] = []
    for prompt in load():
        (text,) = texts.record(backend, [prompt], bench.max_tokens)
        if texts.reply_length(backend, prompt, text) >= bench.max_tokens / 2:
            prompts.append(prompt)
            said.append(text)
        if len(prompts) == bench.n_prompts:
            break
    if not prompts:
        raise StartupError(f"no reply is half as long as {bench.max_tokens} tokens: lower --max-tokens")
    return prompts, said


def leads(bench: Bench, redis_url: str) -> tuple[Command, Command]:
    """Without and with drafters."""
    common = ("--model", str(bench.model), "--threads", str(bench.threads))
    common += ("--ctx-size", str(CTX_SIZE), "--parallel", "1", "--no-lookup")
    drafts = ("--redis", redis_url, "--draft-mode", "async", "--draft-max", str(bench.draft_max))
    return (
        Command("without drafters", duo("serve", *common, "--draft-max", "0")),
        Command("with drafters", duo("serve", *common, *drafts)),
    )


def drafters(bench: Bench, setting: Setting, tt_ms: float, redis_url: str, known: Path) -> list[Command]:
    flags = ("--kind", "replay", "--redis", redis_url, "--texts", str(known))
    flags += ("--vocab-from", str(bench.model), "--accept", f"{setting.a:g}", "--hit", f"{setting.h:g}")
    flags += ("--td-ms", f"{tt_ms / setting.r:.4g}", "--latency-ms", f"{tt_ms * setting.latency:.4g}")
    own = [("--name", f"replay-{i}", "--seed", str(i)) for i in range(1, setting.n_drafters + 1)]
    return [Command(names[1], (sys.executable, "-m", "drafters", *flags, *names)) for names in own]


# -- what comes out ----------------------------------------


def row(setting: Setting, heats: Sequence[Heat], target: Target, draft_max: int, present: float) -> Row:
    """Pure."""
    plain_s = drafted_s = 0.0
    n_equal = 0
    for heat in heats:
        plain, drafted = heat.replies
        if plain.text == drafted.text and plain.client_rate and drafted.client_rate:
            n_equal += 1
            plain_s += (plain.n_tokens - 1) / plain.client_rate
            drafted_s += (drafted.n_tokens - 1) / drafted.client_rate
    return Row(
        setting,
        plain_s / drafted_s if n_equal else None,
        with_outages(expected(setting, target.v, draft_max), present),
        limit(setting.a, setting.r, target.v),
        present,
        n_equal,
        len(heats),
    )


def expected(setting: Setting, v: Curve, draft_max: int) -> float:
    """With the best bound on drafted tokens per step; 1 where none pays."""
    one = Scheme(setting.a, setting.r, setting.latency, setting.h, v)
    return max(1.0, *(speedup(replace(one, k_max=k)) for k in range(1, draft_max + 1)))


def line(row: Row) -> str:
    s = row.setting
    what = f"a {s.a:.2f}  r {s.r:4.1f}  L {s.latency:.1f}  h {s.h:.1f}  drafters {s.n_drafters}"
    measured = "-" if row.measured is None else f"{row.measured:.2f}"
    return f"{what}: {measured}, formula {row.expected:.2f}; {row.n_equal} of {row.n_heats} texts the same"


def table(rows: Sequence[Row]) -> str:
    """Markdown."""
    lines = [
        "| drafters | L / tt | h | a | r | present | speed-up | formula | η_async | limit | η | same text |",
        "| ---: " * 12 + "|",
    ]
    for row in rows:
        s = row.setting
        measured = [
            None if row.measured is None else row.measured / by for by in (1, row.expected, row.limit)
        ]
        speed, eta_async, eta = ("-" if value is None else f"{value:.2f}" for value in measured)
        cells = [f"{value:g}" for value in (s.n_drafters, s.latency, s.h, s.a, s.r)]
        cells += [
            f"{100 * row.present:.0f} %",
            speed,
            f"{row.expected:.2f}",
            eta_async,
            f"{row.limit:.2f}",
            eta,
        ]
        lines.append(f"| {' | '.join(cells)} | {row.n_equal} of {row.n_heats} |")
    return "\n".join(lines)


def describe(bench: Bench, results: Results) -> str:
    curve = ", ".join(f"v({k}) {ratio:.2f}" for k, ratio in results.target.costs.items() if k)
    return (
        f"{model_line(bench.model)}; {bench.threads} threads; tt {results.target.tt_ms:.1f} ms, {curve}; "
        f"at most {bench.draft_max} drafted tokens per step; temperature 0, {bench.n_prompts} prompts of "
        f"at most {bench.max_tokens} tokens. Formula and limit are for one drafter."
    )


def series(rows: Sequence[Row]) -> dict[str, list[tuple[float, float, float]]]:
    """For plots.draw_sweep: by everything but r."""
    found: dict[str, list[tuple[float, float, float]]] = {}
    for row in rows:
        s = row.setting
        name = f"a = {s.a:g}, L = {s.latency:g}, h = {s.h:g}, drafters {s.n_drafters}"
        if row.measured is not None:
            found.setdefault(name, []).append((s.r, row.measured, row.expected))
    return found
