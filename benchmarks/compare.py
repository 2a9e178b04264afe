"""duo beside llama-server: `python -m benchmarks.compare --llama-server PATH [--sweep 3,7 --p-min 0,0.75]`.

Same GGUF files, threads and prompts, request by request in turn, in one run. All servers run from beginning
to end; a column shows that idle ones take no CPU. With --sweep both also draft: llama-server with each
--spec-type, once for each number of drafted tokens and each --p-min; duo once, in the mode and the widths
that it chooses. If the model has a prediction block, both draft with it unless told otherwise. Drafts are
accepted of all drafted tokens, those behind a wrong one too: benchmarks/depths.py tells by depth.

With --clients, several clients ask at once (benchmarks/contest.py), with or without llama-server; duo then
drafts in any case, with each of --duo-flags.

Without --llama-server --sweep compares duo with itself without drafts, whatever its numbers are.

With --faults, leads with bad drafters join in (benchmarks/faults.py). Without --llama-server all are compared
with duo without drafts: what remains of its speed when drafters are dead, lying, lagging or flapping.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import contest, faults, program, report
from benchmarks.contest import Heat, Standing
from benchmarks.processes import (
    Command,
    Options,
    Process,
    duo,
    flags,
    idle_cpu,
    llama_server,
    options_of,
    start,
)
from benchmarks.prompts import hard, load
from benchmarks.report import model_line
from drafters.drafter_settings import BUNDLED_MODEL as BUNDLED_DRAFT
from server.errors import StartupError
from server.llama.tensors import tensors

IDLE_S = 3.0
DRAFTING = "duo, drafts"
ALONE = "--drafters=0"  # in --duo-flags: guesses by what is in the lead, its model's prediction block say


def commands(args: argparse.Namespace) -> list[Command]:
    """All others are compared with the first: llama-server without drafts, if it takes part."""
    size = options_of(args, "device", "model", "ctx_size", "threads", parallel=max(args.clients, default=1))
    plain = size | ({} if args.plain_device is None else {"device": args.plain_device})
    found = [Command("duo", duo("serve", draft_max=0, **plain))]
    if args.llama_server:
        found.insert(0, Command("llama-server", llama_server(args.llama_server, **plain)))
        found += _rivals(args, size)
    other = args.draft_device if args.draft_device != args.device else None
    by_block = args.draft_model == BUNDLED_DRAFT and _has_block(args.model)
    draft = None if by_block else args.draft_model  # which would take the block's place
    drafting = flags(draft_model=draft, draft_threads=args.draft_threads or None, draft_devices=other)
    settings: list[list[str]] = args.duo_flags or [[]]
    for more in settings if args.sweep or args.clients else ():
        name = report.arguments([DRAFTING, *more]) if len(settings) > 1 else DRAFTING
        found.append(Command(name, duo("up", *drafting, *more, **size), drafts=ALONE not in more))
    return found


def _kinds(args: argparse.Namespace) -> list[str]:
    """Of drafts in llama-server: those given, or those that suit the files."""
    if args.spec_type:
        return args.spec_type
    own = ["draft-mtp", "draft-mtp,ngram-mod"] if _has_block(args.model) else ["draft-simple", "ngram-mod"]
    return [*own, "draft-eagle3"] if args.eagle3 else own


def _has_block(model: Path) -> bool:
    return any(".nextn." in name for name in tensors(model))


def _rivals(args: argparse.Namespace, size: Options) -> list[Command]:
    """llama-server with each kind of drafts, in each setting that matters to it."""
    settings = [(n, p_min) for n in args.sweep for p_min in args.p_min]
    return [
        _drafting(args, size, kind, *setting)
        for kind in _kinds(args)
        for setting in (settings if "draft-" in kind else settings[:1])
    ]


def _drafting(args: argparse.Namespace, size: Options, kind: str, n: int, p_min: float) -> Command:
    """kind: one of llama-server's, or several with commas between."""
    name = f"llama-server, {'draft' if kind == 'draft-simple' else kind}"
    if "draft-" not in kind:
        return Command(name, llama_server(args.llama_server, *flags(spec_type=kind), **size))
    inside = "draft-mtp" in kind and _has_block(args.model)
    other = args.eagle3 if "draft-eagle3" in kind else args.draft_model
    drafting = flags(
        model_draft=None if inside else other,
        spec_type=kind,
        spec_draft_n_max=n,
        spec_draft_threads=args.draft_threads or (args.threads if inside else 1),
        spec_draft_p_min=f"{p_min:g}",
    )
    if args.draft_device is not None and not inside:
        drafting += ("-devd", f"CUDA{args.draft_device}", "-ngld", "99")
    return Command(f"{name} {n}, p_min {p_min:g}", llama_server(args.llama_server, *drafting, **size))


def compare(args: argparse.Namespace) -> list[str]:
    """Run all; returns markdown parts. Raises DuoError."""
    with ExitStack() as stack:
        servers = start(stack, commands(args))
        bad, join = faults.enter(stack, args, load(args.prompts))
        servers += bad
        contest.warm_up(servers)
        join()
        if args.clients:
            modes = [str(server.health().get("draft_mode", "unknown")) for server in servers if server.drafts]
            bouts = contest.run_bouts(servers, args)
            what = f"Draft mode: {', '.join(modes)}. Slowest client: its tokens/s, by the mean."
            return [what, contest.bouts_table([server.name for server in servers], bouts)]
        idle = idle_cpu(servers, IDLE_S)
        failed: list[str] = []
        prompts = [*load(args.prompts), *(hard() if args.hard else ())] * args.rounds
        heats = contest.run(servers, prompts, args.max_tokens, contest.print_heat, failed)
        table = contest.standings([server.name for server in servers], heats)
        parts = [contest.standings_table(table, idle)]
        names = [server.name for server in servers]
        parts += [accepted_apart(names, heats)] if args.hard else []
        for drafting in (name for name in names if name.startswith(DRAFTING)):
            parts += [against_best(drafting, table, heats)] if args.llama_server else []
            parts += [against_none(drafting, names, heats)] if args.hard else []
        parts += [f"Prompt left out: {failure}." for failure in failed]
        return [*parts, *_python_shares(servers), *_paces(servers)]


def against_best(drafting: str, table: Sequence[Standing], heats: Sequence[Heat]) -> str:
    """This duo with drafts beside llama-server's setting with the highest total rate."""
    best = max((s for s in table if s.name.startswith("llama")), key=lambda s: s.total_rate or 0.0)
    names = [standing.name for standing in table]
    pairs = [Heat(h.prompt, [h.replies[names.index(n)] for n in (best.name, drafting)]) for h in heats]
    ours = contest.standings([best.name, drafting], pairs)[1]
    total = (ours.total_rate or 0.0) / (best.total_rate or 1.0)
    return (
        f"{drafting}, against {best.name}, the best of llama-server: {total:.2f} times its tokens in all per "
        f"second in all; {ours.client_ratio or 0:.2f} times in the median of prompts."
    )


def accepted_apart(names: Sequence[str], heats: Sequence[Heat]) -> str:
    """Drafts accepted of the prompts that the models were trained for, and of the hard ones."""
    told: list[str] = []
    for i, name in enumerate(names):
        shares: list[str] = []
        for is_hard in (False, True):
            replies = [heat.replies[i] for heat in heats if bool(heat.prompt.more) is is_hard]
            n_drafted = sum(reply.n_drafted for reply in replies)
            shares.append(report.accepted(sum(reply.n_accepted for reply in replies), n_drafted))
        told += [f"{name}: {' and '.join(shares)}"] if shares != ["-", "-"] else []
    return f"Drafts accepted without the hard prompts, and of those. {'; '.join(told)}."


def against_none(drafting: str, names: Sequence[str], heats: Sequence[Heat]) -> str:
    """This duo beside duo without drafts: the slowest reply by medians over rounds, and the hard ones."""
    pair = plain, drafted = names.index("duo"), names.index(drafting)
    ratios: dict[str, list[float]] = {}
    seconds = dict.fromkeys(pair, 0.0)
    for heat in heats:
        rates = {i: heat.replies[i].server_rate for i in pair}
        if min(reply.n_tokens for reply in heat.replies) >= contest.SHORTEST and all(rates.values()):
            ratios.setdefault(heat.prompt.id, []).append((rates[drafted] or 0.0) / (rates[plain] or 1.0))
            if heat.prompt.more:
                for i, rate in rates.items():
                    seconds[i] += 1.0 / (rate or 1.0)  # a token of each reply
    slowest = sorted((statistics.median(known), name) for name, known in ratios.items())[:5]
    together = seconds[plain] / (seconds[drafted] or 1.0)
    return (
        f"{drafting}, against duo without: hard replies together {together:.2f}; the slowest"
        f", medians of rounds: {', '.join(f'{name} {ratio:.2f}' for ratio, name in slowest)}."
    )


def _python_shares(servers: Sequence[Process]) -> list[str]:
    """The time of a step outside decode, of servers that report it."""
    shares = {server.name: server.health().get("engine", {}).get("step_python_us") for server in servers}
    what = "µs of Python in a one-session step (median)."
    return [f"{name}: {share:.0f} {what}" for name, share in shares.items() if share is not None]


def _paces(servers: Sequence[Process]) -> list[str]:
    """What benchmarks.limits takes, of servers that report it."""
    told: list[str] = []
    for server in servers:
        health = server.health()
        gate, drafters = health.get("gate", {}), health.get("drafters", [])
        step_ms = gate.get("steady_ms") or gate.get("step_ms")
        if step_ms and drafters:
            steps = ",".join(f"{rows}:{ms:.2f}" for rows, ms in step_ms.items())
            guesses = ", ".join(f"{drafter['guess_ms']:.2f}" for drafter in drafters)
            told.append(f"{server.name}: --steps {steps} (ms by rows) --guess-ms {guesses}.")
    return told


def measure(args: argparse.Namespace) -> program.Result:
    """Raises DuoError."""
    if not (args.llama_server or args.faults or args.clients or args.sweep):
        raise StartupError(
            "give --llama-server; or, for duo alone, --clients, --sweep 1 or --faults, which compares bad "
            "drafters with none"
        )
    program.check_files(args.model, args.draft_model, *filter(None, [args.eagle3]))
    if args.llama_server:
        args.llama_server = program.binary(args.llama_server)
    what = f"{model_line(args.model)}; {args.threads} threads; temperature 0, at most {args.max_tokens} "
    what += f"tokens, {args.prompts} prompts x {args.rounds}. Ratios are medians, to the first row."
    if args.sweep or args.clients:
        what += f" Draft: {model_line(args.draft_model)}."
    beside = "beside llama-server" if args.llama_server else "bad drafters" if args.faults else "drafts"
    return f"{args.model.stem}, {beside}", [what, *compare(args)]


def _parser() -> argparse.ArgumentParser:
    shared = ("llama-server", "model", "draft-model", "device", "draft-device", "threads", "prompts")
    parser = program.make_parser("compare", "duo beside llama-server.", *shared, "rounds", "max-tokens")
    add = parser.add_argument
    several = "more flags of a duo with drafts; one for each time that this is given"
    add("--duo-flags", type=str.split, action="append", help=several)
    clients = "ask at once, such as 1,4: each in turn; each asks --prompts in a round"
    add("--clients", type=program.numbers, default=[], help=clients)
    add("--draft-threads", type=int, default=0, help="of each draft model; 0: its default")
    add("--p-min", type=program.floats, default=[0.0], help="of llama-server's drafts: 0,0.75")
    elsewhere = "CUDA device of the servers without drafts, where one has no room for all (default: --device)"
    add("--plain-device", type=int, help=elsewhere)
    add("--ctx-size", type=int, default=4096, help="context of each server")
    add(
        "--sweep", type=program.numbers, default=[], help="with drafts, in llama-server of these lengths: 3,7"
    )
    kinds = "of drafts in llama-server, several joined by commas; once for each (default: by the files)"
    add("--spec-type", action="append", help=kinds)
    add("--eagle3", type=Path, help="GGUF file of an EAGLE-3 head, for llama-server")
    add("--hard", action="store_true", help="also ten prompts whose drafts are poor")
    add(
        "--faults",
        type=lambda text: text.split(","),
        default=[],
        help=f"of drafters: {','.join(faults.FAULTS)}",
    )
    return parser


main = program.main(_parser, measure)

if __name__ == "__main__":
    sys.exit(main())
