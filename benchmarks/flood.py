"""What a drafter that floods takes of a lead's time: `python -m benchmarks.flood [--seconds 20]`.

Writers have the server append to the inbox of a lead's bus as fast as it can: guesses from a drafter that is
present, for a session that is open; and rubbish. Measured is processor time of the lead's own threads: its
reader, its writer, and a thread that takes messages in every 5 ms, as an engine does before a step. It does
not matter that writers and Redis take the same cores here.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import cast

import redis

from benchmarks import program, report
from server.engine.proposer import OpenedSession
from server.engine.request import Speculation
from server.local.embedded import EmbeddedServer
from server.sampling.params import SamplingParams
from server.speculation.policy import Policy
from server.speculation.sources.remote import RemoteDrafters
from server.speculation.speculator import Speculator
from server.speculation.wire.messages import ROOT, Draft, encode
from server.speculation.wire.presence import Presence, VocabularyCard
from server.speculation.wire.streams import RedisBus

POOL, STEP_S, BATCH = "flood", 0.005, 1000
CARD = VocabularyCard(1000, 1, 2, (0,))
INBOX = f"duo:{{{POOL}}}:lead:lead"
KINDS = {
    "guesses": encode(Draft("drafter", 1, 5, 6, 0, (ROOT, 0, 1), (1, 2, 3), bytes(3))),
    "rubbish": b"x" * 64,
    "long rubbish": b"x" * (1 << 16),
}
WARM_UP_S = 17.0  # until a lead rests as long as it ever does
SCRIPT = """
for i = 1, ARGV[2] do redis.call("XADD", KEYS[1], "MAXLEN", "~", 1024, "*", "m", ARGV[1]) end
"""


@dataclass(frozen=True, slots=True)
class Flood:
    """offered, read: entries a second. percent: of a core, what all threads of the lead take; engine: of
    these, the one that stands for the engine."""

    offered: float
    read: float
    percent: float
    engine: float


class Silent:
    """A drafter that is there and takes nothing in."""

    def received(self, message: object) -> None: ...

    def peers(self, present: object) -> None: ...


class FloodedLead:
    """The lead's side of the bus, with one session open, in this process."""

    def __init__(self, url: str) -> None:
        own = Presence("lead", "lead", "toy", "0", CARD, 4)
        self.bus = RedisBus(url, POOL, own)
        self._remote = RemoteDrafters(self.bus, own, max_ahead=8)
        self._speculator = Speculator(Policy(), remote=self._remote)
        self._ended = threading.Event()
        self._engine = threading.Thread(target=self._drain, name="engine")

    def __enter__(self) -> FloodedLead:
        self.bus.start(self._remote)
        self._speculator.open(OpenedSession(1, [1, 2, 3, 4, 5], SamplingParams(), Speculation()))
        self._engine.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._engine.join()
        self.bus.close()

    def spent_s(self) -> tuple[float, float]:
        """Processor time of all threads of this process but the main one, and of the engine's."""
        clocks = {
            thread: time.pthread_getcpuclockid(cast(int, thread.ident))
            for thread in threading.enumerate()
            if thread is not threading.main_thread()
        }
        times = {thread: time.clock_gettime(clock) for thread, clock in clocks.items()}
        return sum(times.values()), times[self._engine]

    @property
    def n_read(self) -> int:
        return self.bus.counters.received + self.bus.counters.undecodable

    def _drain(self) -> None:
        while not self._ended.wait(STEP_S):
            self._speculator.drain(1)


def write(url: str, kind: str) -> None:
    """Append until the end of this process, and print how much at every line of the standard input."""
    n = 0
    asked = threading.Event()

    def answer() -> None:
        for _ in sys.stdin:
            asked.set()

    threading.Thread(target=answer, daemon=True).start()
    with redis.Redis.from_url(url) as client:
        while True:
            client.execute_command("EVAL", SCRIPT, 1, INBOX, KINDS[kind], BATCH)
            n += BATCH
            if asked.is_set():
                asked.clear()
                print(n, flush=True)


def flood(kind: str, n_writers: int, seconds: float) -> Flood:
    """kind: of KINDS, "" for silence."""
    with ExitStack() as stack:
        url = stack.enter_context(EmbeddedServer()).url
        lead = stack.enter_context(FloodedLead(url))
        drafter = RedisBus(url, POOL, Presence("drafter", "drafter", "toy", "0", CARD, 4))
        stack.callback(drafter.close)
        drafter.start(Silent())
        command = [sys.executable, "-m", "benchmarks.flood", "--write", kind, "--url", url]
        writers = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(n_writers if kind else 0)
        ]
        for writer in writers:
            stack.enter_context(writer)
            stack.callback(writer.kill)
        threading.Event().wait(WARM_UP_S)
        before = written(writers), lead.n_read, lead.spent_s(), time.monotonic()
        threading.Event().wait(seconds)
        after = written(writers), lead.n_read, lead.spent_s(), time.monotonic()
        took = after[3] - before[3]
        all_s, engine_s = (late - early for late, early in zip(after[2], before[2], strict=True))
        offered, read = (after[0] - before[0]) / took, (after[1] - before[1]) / took
        return Flood(offered, read, 100 * all_s / took, 100 * engine_s / took)


def written(writers: list[subprocess.Popen[str]]) -> int:
    """Entries that they have appended by now."""
    n = 0
    for writer in writers:
        assert writer.stdin
        assert writer.stdout
        writer.stdin.write("\n")
        writer.stdin.flush()
        n += int(writer.stdout.readline())
    return n


def measure(args: argparse.Namespace) -> program.Result:
    """Raises StartupError."""
    if args.write:
        write(args.url, args.write)
    lines: list[list[str]] = []
    for kind in ("", *KINDS):
        found = flood(kind, args.writers, args.seconds)
        cells = [f"{found.offered:,.0f}", f"{found.read:,.0f}", f"{found.percent:.2f}", f"{found.engine:.2f}"]
        lines.append([kind or "nothing", *cells])
        print(" ".join(lines[-1]), flush=True)
    heads = ["what", "offered a second", "read a second", "percent of a core", "of it the engine's"]
    what = f"A lead's threads over {args.seconds:g} s, {args.writers} writers."
    return "A flooded lead", [what, report.table(heads, lines)]


def _parser() -> argparse.ArgumentParser:
    parser = program.make_parser("flood", "What a drafter that floods takes of a lead's time.")
    parser.add_argument(
        "--seconds",
        type=float,
        default=34.0,
        help="of each case, after those in which a lead gets used to it",
    )
    parser.add_argument("--writers", type=int, default=2, help="processes that flood")
    parser.add_argument("--write", default="", choices=["", *KINDS], help=argparse.SUPPRESS)
    parser.add_argument("--url", default="", help=argparse.SUPPRESS)
    return parser


main = program.main(_parser, measure)

if __name__ == "__main__":
    sys.exit(main())
