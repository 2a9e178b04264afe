"""How many leads and drafters one Redis carries: `python -m benchmarks.carry [--leads 8 --rates 500,8000]`.

What a lead and a drafter say is recorded from the pair of models under a virtual clock (tapes.py). Then many
of both say it over a real server, faster and faster, by the real bus (crowd.py); the server is asked what
that took. Since the bus takes several times as much of a processor as the server, the server is then filled
by connections that send what the bus sends, packed beforehand. From these figures a formula (capacity.py)
tells how many tokens a second there can be in all.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import product
from operator import attrgetter

import redis

from benchmarks import program, report
from benchmarks.capacity import Load, shares
from benchmarks.clocked import pair, recite
from benchmarks.crowd import INBOXES, Crowd, Played, Press, play, score
from benchmarks.tapes import PER_TOKEN, Tape, kind_of, record
from server.local.embedded import EmbeddedServer
from server.speculation.wire.messages import encode
from server.speculation.wire.redis_client import connect
from server.speculation.wire.roster import MAX_PEERS

WAY = "temperature 0"
NETWORK = 125e6  # bytes a second each way of 1 Gbit/s
CROWDS = ((1, 1), (6, 6), (12, 12), (4, 12))  # leads and drafters that say nothing
PER_TRIP = (1, 8)  # messages to a round trip of a full server
LINKS = (1, 3)  # drafters of a session
ROUNDS = 10  # of which the one counts that took least of a processor: what else a machine does adds to it
SILENT_ROUNDS = 3  # as above; each as long as a run, since processes look around four times a second


@dataclass(frozen=True, slots=True)
class Taped:
    """A tape of steps of step_ms, a drafter that makes r guesses in a step, and at_once replies at a time."""

    step_ms: float
    r: float
    at_once: int
    tape: Tape


@dataclass(frozen=True, slots=True)
class Stock:
    """full: runs of a server that is as full as it gets, by messages to a round trip."""

    budgets: Budgets
    full: Mapping[int, Played]


@dataclass(frozen=True, slots=True)
class Budgets:
    """Of processor seconds, of bytes that come in and that go out."""

    cpu: Load
    inward: Load
    outward: Load


def taped(args: argparse.Namespace) -> list[Taped]:
    """Raises DuoError."""
    with pair(args) as (target, draft):
        known = recite(target, WAY, args.prompts, args.max_tokens)
        return [
            Taped(step_ms, r, n, record(draft, known, r, round(1000 * step_ms), n))
            for step_ms, r, n in product(args.step_ms, args.r, args.sessions)
        ]


def rise(client: redis.Redis, crowd: Crowd, tape: Tape, args: argparse.Namespace) -> list[Played]:
    """At these rates, until the buses or the server can do no more."""
    cues = score(tape, crowd, min(LINKS[-1], len(crowd.drafters)))
    found: list[Played] = []
    for rate in args.rates:
        found.append(play(client, crowd, cues, rate, args.seconds))
        if found[-1].stopped_by:
            break
    return found


def take_stock(url: str, client: redis.Redis, tape: Tape, args: argparse.Namespace) -> Stock:
    """Have leads and drafters say nothing, then fill the server."""
    seen: list[tuple[int, int, Played]] = []
    for n_leads, n_drafters in CROWDS:
        with Crowd(url, n_leads, n_drafters, args.vocabulary) as crowd:
            runs = (play(client, crowd, (), 0, args.seconds) for _ in range(SILENT_ROUNDS))
            seen.append((n_leads, n_drafters, min(runs, key=lambda one: one.spent.cpu_s / one.seconds)))
    data = [encode(one.message) for one in tape.said if kind_of(one.message) in PER_TOKEN]
    full: dict[int, Played] = {}
    sizes: dict[int, float] = {}
    for n in PER_TRIP:
        with Press(url, data, n) as press:
            runs = (press.run(args.seconds / ROUNDS) for _ in range(ROUNDS))
            full[n] = min(runs, key=lambda one: one.spent.cpu_s / one.counts.sent)
            sizes[n] = press.size
    loads: list[Load] = []
    for name in ("cpu_s", "bytes_in", "bytes_out"):
        of = attrgetter(name)
        silent = shares([(n, d, of(one.spent) / one.seconds) for n, d, one in seen])
        each = of(full[1].spent) / full[1].counts.sent
        loads.append(Load(*silent, each) if name == "cpu_s" else Load(*silent, each - sizes[1], 1.0))
    return Stock(Budgets(*loads), full)


def said(tapes: Sequence[Taped]) -> str:
    """Markdown: messages by kind."""
    rows: list[list[str]] = []
    kinds = sorted(tapes[0].tape.counts)
    for one in tapes:
        counts, sizes = one.tape.counts, one.tape.sizes
        per = {kind: one.tape.n_tokens if kind in PER_TOKEN else one.tape.n_replies for kind in kinds}
        cells = [f"{counts[kind] / per[kind]:.2f} of {sizes[kind] / counts[kind]:.0f}" for kind in kinds]
        rows.append([f"{one.step_ms:g} ms", f"{one.r:g}", str(one.at_once), *cells])
    return report.table(["step", "r", "sessions", *kinds], rows)


def loaded(played: Sequence[Played], full: Mapping[int, Played]) -> str:
    """Markdown: a line for each rate of the buses, then for servers that are as full as they get."""
    rows: list[list[str]] = []
    for name, one in [("buses", one) for one in played] + [(f"{n} at once", one) for n, one in full.items()]:
        n, cpu_s = one.counts.sent, one.spent.cpu_s
        lost = one.counts.dropped + n - one.counts.received if name == "buses" else None
        numbers = (n / one.seconds, 1e6 * cpu_s / n, 1e6 * one.client_s / n)
        cells = [
            f"{numbers[0]:,.0f}",
            f"{numbers[1]:.1f}",
            f"{100 * cpu_s / one.seconds:.0f}",
            f"{n / cpu_s:,.0f}",
        ]
        more = [
            f"{one.spent.n_added / one.spent.n_reads:.1f}",
            f"{numbers[2]:.1f}",
            "-" if lost is None else str(lost),
        ]
        rows.append([name, *cells, *more])
    heads = (
        "from | messages/s | Redis, ms per 1,000 | percent of its core | a core, messages/s | entries a read"
    )
    return report.table(f"{heads} | clients, ms per 1,000 | lost", rows)


def carried(tapes: Sequence[Taped], found: Budgets, n_prompt: int, n_tokens: int) -> str:
    """Markdown: what one server carries of leads as on each tape, each with its own drafters."""
    rows: list[list[str]] = []
    for one, links in product(tapes, LINKS):
        lead = one.tape.traffic.lead(n_prompt, n_tokens, links=links, n_drafters=links)
        by_core = found.cpu.most_leads(lead, 1.0)
        by_net = min(load.most_leads(lead, NETWORK) for load in (found.inward, found.outward))
        most = min(by_core, by_net, MAX_PEERS // links)
        what = [f"{one.step_ms:g} ms", f"{one.r:g}", str(one.at_once), str(links)]
        numbers = (lead.tokens, lead.messages, lead.size, by_core, by_net, most, most * lead.tokens)
        rows.append([*what, *(f"{number:,.0f}" for number in numbers)])
    heads = "step | r | sessions | drafters | tokens/s | messages/s | bytes each | leads by core | by network"
    return report.table(f"{heads} | by all | tokens/s in all", rows)


def terms(found: Budgets) -> str:
    """Markdown: the formula's terms."""
    heads = "of a second | of Redis itself | for a process | for a pair of lead and drafter | for a message"
    return report.table(
        heads,
        [
            ["processor, µs", *(f"{1e6 * one:.1f}" for one in _terms(found.cpu))],
            ["bytes in", *(f"{one:,.0f}" for one in _terms(found.inward))],
            ["bytes out", *(f"{one:,.0f}" for one in _terms(found.outward))],
        ],
    )


def _terms(load: Load) -> tuple[float, ...]:
    return load.base, load.member, load.pair, load.message


def measure(args: argparse.Namespace) -> program.Result:
    """Raises DuoError."""
    tapes = taped(args)
    with EmbeddedServer() as server, closing(connect(server.url)) as client:
        stock = take_stock(server.url, client, tapes[0].tape, args)
        with Crowd(server.url, args.leads, args.drafters, args.vocabulary) as crowd:
            played = rise(client, crowd, tapes[0].tape, args)
    n, last = tapes[0].tape.n_replies, played[-1].stopped_by or "nothing"
    return "what one Redis carries", [
        f"{n} replies of {args.max_tokens} tokens. Messages of a lead and one drafter, and bytes of each: "
        "Commit and Draft for a token, others for a reply.",
        said(tapes),
        f"{args.leads} leads and {args.drafters} drafters in one process, {args.seconds:g} s each, up to "
        f"{LINKS[-1]} drafters of a lead; in the last row of buses {last} at its end. Then {INBOXES} inboxes "
        "by commands packed before, by how many go to each at once.",
        loaded(played, stock.full),
        "What Redis takes. Bytes for a message: beside its own.",
        terms(stock.budgets),
        f"How many leads, each with drafters of its own, prompts of {args.prompt_tokens} and replies of "
        f"{args.reply_tokens} tokens, fill a core, or 1 Gbit/s; by all: and see each other.",
        carried(tapes, stock.budgets, args.prompt_tokens, args.reply_tokens),
    ]


def _parser() -> argparse.ArgumentParser:
    shared = ("model", "draft-model", "threads", "prompts", "max-tokens")
    what = "How many leads and drafters one Redis carries."
    parser = program.make_parser("carry", what, *shared, prompts=None, max_tokens=64)
    add = parser.add_argument
    add(
        "--step-ms",
        type=program.floats,
        default=[30.0, 10.0, 100.0],
        help="of a plain step; the first is said",
    )
    add("--r", type=program.floats, default=[8.0], help="drafted tokens per plain step")
    add("--sessions", type=program.numbers, default=[4], help="of a lead, at most 8")
    add("--leads", type=int, default=8, help="that load the server")
    add("--drafters", type=int, default=8, help="that load the server")
    add("--rates", type=program.numbers, default=[250 << n for n in range(8)], help="messages a second")
    add("--seconds", type=float, default=5.0, help="of each run")
    add("--vocabulary", type=int, default=151_936, help="tokens: the more, the longer the cards")
    add("--prompt-tokens", type=int, default=2000, help="of the replies to reckon with")
    add("--reply-tokens", type=int, default=300, help="of the replies to reckon with")
    return parser


main = program.main(_parser, measure)

if __name__ == "__main__":
    sys.exit(main())
