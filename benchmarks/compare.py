"""Compare duo with llama-server: `python -m benchmarks.compare --llama-server PATH --model M --sweep 2,4`.

All servers run from beginning to end. They answer the same prompts, request by request in turn, with the same
files, threads and context. llama-server runs without drafts and, with --sweep, with each --spec-type, once
for each number of drafted tokens and each --p-min. duo runs without drafts and as `duo up` starts it. PATH is
the binary, or a Python interpreter that has the package xllamacpp: then xllamacpp_server.py runs the newest
llama.cpp. If the model has a prediction block, both servers draft with it unless told otherwise.

With --clients, several clients ask at once (contest.py); llama-server is then optional, and duo always
drafts. Without --llama-server, --sweep compares duo with drafts to duo without. With --faults, leads with bad
drafters take part (faults.py). With --busy, other programs take the cores meanwhile.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks import contest, faults, program, report
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
from benchmarks.prompts import GENERAL, PYTHON, Prompt, load
from benchmarks.report import model_line
from benchmarks.verdicts import kinds_table, verdicts_table
from drafters.drafter_settings import BUNDLED_MODEL as BUNDLED_DRAFT
from server.errors import StartupError
from server.flags import n_cores
from server.llama.tensors import tensors

IDLE_MEASURED_S = 3.0
SPINNING = Command("busy", (sys.executable, "-c", "while True: pass"))  # takes one core
DRAFTING = "duo, drafts"
NO_DRAFTERS = "--drafters=0"  # in --duo-flags: guesses of what is in the lead alone


def commands(args: argparse.Namespace) -> list[Command]:
    """Return the servers. The first is the baseline: llama-server without drafts, or duo in its absence."""
    n_slots = max(args.clients, default=1)
    size = options_of(args, "device", "model", parallel=n_slots, ctx_size=n_slots * args.ctx_size)
    size |= {
        "threads": args.threads or None,
        "cache_type_k": args.cache_type,
        "cache_type_v": args.cache_type,
    }
    elsewhere: Options = {} if args.plain_device is None else {"device": args.plain_device}
    found = [Command("duo", duo("serve", draft_max=0, **size | elsewhere))]
    if args.llama_server:
        theirs = size | {"model": args.rival_model or args.model, "threads": args.threads or n_cores()}
        found.insert(0, Command("llama-server", llama_server(args.llama_server, **theirs | elsewhere)))
        found += _rivals(args, theirs)
    other = args.draft_device if args.draft_device != args.device else None
    by_block = args.draft_model == BUNDLED_DRAFT and _has_block(args.model)
    draft = None if by_block else args.draft_model  # which would take the block's place
    drafting = flags(draft_model=draft, draft_threads=args.draft_threads or None, draft_devices=other)
    settings: list[list[str]] = args.duo_flags or [[]]
    for more in settings if args.sweep or args.clients else ():
        name = report.arguments([DRAFTING, *more]) if len(settings) > 1 else DRAFTING
        found.append(Command(name, duo("up", *drafting, *more, **size), drafts=NO_DRAFTERS not in more))
    return found


def _kinds(args: argparse.Namespace) -> list[str]:
    """Return llama-server's kinds of drafts: those given, or those that suit the files."""
    if args.spec_type:
        return args.spec_type
    own = ["draft-mtp", "draft-mtp,ngram-mod"] if _has_block(args.model) else ["draft-simple", "ngram-mod"]
    return [*own, "draft-eagle3"] if args.eagle3 else own


def _has_block(model: Path) -> bool:
    return any(".nextn." in name for name in tensors(model))


def _rivals(args: argparse.Namespace, size: Options) -> list[Command]:
    """Return llama-server with each kind of drafts, in each setting that affects this kind."""
    settings = [(n, p_min) for n in args.sweep for p_min in args.p_min]
    return [
        _drafting(args, size, kind, *setting)
        for kind in _kinds(args)
        for setting in (settings if "draft-" in kind else settings[:1])
    ]


def _drafting(args: argparse.Namespace, size: Options, kind: str, n: int, p_min: float) -> Command:
    """Return a llama-server that drafts.

    kind: A value of its --spec-type, or several joined by commas.
    """
    name = f"llama-server, {'draft' if kind == 'draft-simple' else kind}"
    if "draft-" not in kind:
        return Command(name, llama_server(args.llama_server, *flags(spec_type=kind), **size))
    inside = "draft-mtp" in kind and _has_block(args.model)
    other = args.eagle3 if "draft-eagle3" in kind else args.draft_model
    drafting = flags(
        model_draft=None if inside else other,
        spec_type=kind,
        spec_draft_n_max=n,
        spec_draft_threads=args.draft_threads or args.threads or n_cores(),
        spec_draft_p_min=f"{p_min:g}",
    )
    if args.draft_device is not None and not inside:
        drafting += ("-devd", f"CUDA{args.draft_device}", "-ngld", "99")
    return Command(f"{name} {n}, p_min {p_min:g}", llama_server(args.llama_server, *drafting, **size))


def compare(args: argparse.Namespace) -> list[str]:
    """Run all servers; return markdown parts. Raises DuoError."""
    with ExitStack() as stack:
        servers = start(stack, commands(args))
        bad, join = faults.enter(stack, args, load(args.prompts, args.subject))
        servers += bad
        contest.warm_up(servers)
        join()
        if args.clients:
            modes = [str(server.health().get("draft_mode", "unknown")) for server in servers if server.drafts]
            bouts = contest.run_bouts(servers, args)
            what = f"Draft mode: {', '.join(modes)}. Slowest client: its tokens/s, by the mean."
            return [what, contest.bouts_table([server.name for server in servers], bouts)]
        idle = idle_cpu(servers, IDLE_MEASURED_S)
        failed: list[str] = []
        for _ in range(args.busy):
            stack.enter_context(Process(SPINNING))
        heats = contest.run(servers, _asked(args), args.max_tokens, contest.print_heat, failed)
        names = [server.name for server in servers]
        parts = [contest.standings_table(contest.standings(names, heats), idle)] if heats else []
        memory = {server.name: server.memory_bytes() for server in servers}
        parts += [verdicts_table(names, heats, list(memory.values())), kinds_table(names, heats)]
        parts += [_memory_line(memory)]
        parts += [f"Prompt left out: {failure}." for failure in failed]
        return [*parts, *_python_shares(servers)]


def _memory_line(memory: Mapping[str, int | None]) -> str:
    told = (f"{name} {n_bytes / 2**20:.0f}" for name, n_bytes in memory.items() if n_bytes)
    return f"Resident memory of each main process, MiB: {', '.join(told)}."


def _asked(args: argparse.Namespace) -> list[Prompt]:
    """Return the prompts of all rounds. Prompts of later rounds find no cached prefix in any server."""
    prompts = load(args.prompts, args.subject)
    again = {"cache_prompt": False}
    later = [replace(p, salt=f"round {i}", more=again) for i in range(1, args.rounds) for p in prompts]
    return prompts + later


def _python_shares(servers: Sequence[Process]) -> list[str]:
    """Return a line about the Python time of a step, for each server that reports this time."""
    shares = {server.name: server.health().get("engine", {}).get("step_python_us") for server in servers}
    what = "µs of Python in a one-session step (median)."
    return [f"{name}: {share:.0f} {what}" for name, share in shares.items() if share is not None]


def measure(args: argparse.Namespace) -> program.Result:
    """Compare and return the section. Raises DuoError."""
    if not (args.llama_server or args.faults or args.clients or args.sweep):
        raise StartupError(
            "give --llama-server; or, for duo alone, --clients, --sweep 1 or --faults, which compares bad "
            "drafters with none"
        )
    program.check_files(args.model, args.draft_model, *filter(None, [args.eagle3]))
    if args.llama_server:
        args.llama_server = program.binary(args.llama_server)
    what = f"{model_line(args.model)}; {args.threads or n_cores()} threads; temperature 0, at most "
    what += f"{args.max_tokens} tokens, {args.prompts} {args.subject} prompts x {args.rounds}. "
    what += "Ratios of the first table are medians, to the first row."
    if args.busy:
        what += f" Beside {args.busy} busy processes."
    if args.sweep or args.clients:
        what += f" Draft: {model_line(args.draft_model)}."
    beside = "beside llama-server" if args.llama_server else "bad drafters" if args.faults else "drafts"
    return f"{args.model.stem}, {beside}", [what, *compare(args)]


def _parser() -> argparse.ArgumentParser:
    shared = ("llama-server", "model", "draft-model", "device", "draft-device", "threads", "prompts")
    parser = program.make_parser("compare", "duo beside llama-server.", *shared, "rounds", "max-tokens")
    parser.set_defaults(threads=0, prompts=60)
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
    add("--rival-model", type=Path, help="llama-server's file where duo converts its own (default: --model)")
    add("--cache-type", help="type of the KV cache in all servers, such as f32")
    add("--busy", type=int, default=0, help="processes that take a core each while prompts are asked")
    add("--subject", choices=(GENERAL, PYTHON), default=GENERAL, help="of the prompts")
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
