"""Time the first text of a conversation's turns: `python -m benchmarks.turns --llama-server PATH`.

duo and llama-server run at once, with the same GGUF file, threads and conversations, and answer request by
request in turn. For each length of history: a new conversation, its next turn, a title asked for in between,
conversations that share a system prompt and take turns in rotation, the first conversation again, and once
more after both servers were restarted. llama-server must be told to save its slot before the restart and to
restore it after; restoring counts as part of its turn. duo does both by itself. Each server is sent its own
replies.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from benchmarks import program, report
from benchmarks.client import Reply, ask, call, call_json
from benchmarks.inflate import bundled_400m
from benchmarks.processes import Command, Options, Process, duo, idle_cpu, llama_server, options_of, start
from benchmarks.prompts import PYTHON, Prompt, load
from server.errors import StartupError

COLD = "cold"
WARM = "warm turn"
TITLE = "title, on the side"
AFTER = "turn after the title"
ALONE = "a warm turn's new tokens, alone"
FIRST = "first turn, system prompt shared"
SECOND = "second turn, in rotation"
BACK = "turn after all of these"
DISK = "turn after a restart, from disk"
QUESTION = "Could you say that once more, in one sentence?"
TITLE_OF = "Write a title of at most five words for a conversation that begins with: "
TITLE_CHARS = 200
SHORT_TOKENS = 16
MOVED_S = 3.0
TURN_POLL_S = 0.05
SLOT_FILE = "turns.bin"
MESSAGE_TOKENS = 200  # a history is cut into messages of this length

Message: TypeAlias = dict[str, str]


# -- what is said ----------------------------------------


class Conversation:
    """A conversation with each server; only the replies differ."""

    def __init__(self, opening: Sequence[Message], n_servers: int) -> None:
        self.opening = opening
        self._messages = [list(opening) for _ in range(n_servers)]

    def messages(self, server: int) -> list[Message]:
        return list(self._messages[server])

    def hear(self, server: int, reply: str) -> None:
        self._messages[server].append({"role": "assistant", "content": reply})

    def say(self, text: str) -> None:
        for messages in self._messages:
            messages.append({"role": "user", "content": text})


class Author:
    """Writes openings of conversations from the evaluation prompts, all with different first words."""

    def __init__(self, tokenize: Callable[[str], list[str]]) -> None:
        """Use `tokenize`, which returns a text's pieces, one for each token."""
        self._tokenize = tokenize
        self._n_written = 0

    def opening(self, n_tokens: int) -> list[Message]:
        """Return messages of n_tokens in all, without the template's. First and last are the user's."""
        pieces = self._pieces(n_tokens)
        texts = ["".join(pieces[i : i + MESSAGE_TOKENS]) for i in range(0, len(pieces), MESSAGE_TOKENS)]
        if len(texts) % 2 == 0:
            texts[-2:] = ["".join(texts[-2:])]
        return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]

    def system(self, n_tokens: int) -> Message:
        return {"role": "system", "content": "".join(self._pieces(n_tokens))}

    def _pieces(self, n_tokens: int) -> list[str]:
        """Return the pieces of a new text of n_tokens tokens. Raises ReplyError."""
        self._n_written += 1
        said = [message["content"] for prompt in load(subject=PYTHON) for message in prompt.messages]
        draw = random.Random(self._n_written)
        parts = [str(self._n_written)]
        while True:
            parts += draw.sample(said, len(said))
            pieces = self._tokenize(" ".join(parts).encode("ascii", "ignore").decode())
            if len(pieces) >= n_tokens:
                return pieces[:n_tokens]


def pieces_of(port: int, text: str) -> list[str]:
    """Return the pieces of an ASCII text by llama-server's POST /tokenize. Raises ReplyError."""
    answer = call_json(port, "/tokenize", {"content": text, "with_pieces": True})
    return [str(token["piece"]) for token in answer["tokens"]]


# -- what comes out ----------------------------------------


@dataclass(frozen=True, slots=True)
class Sample:
    """One turn of one conversation: the replies of duo and of llama-server."""

    scenario: str
    history: int
    turns: tuple[Reply, ...]
    restore_ms: float = 0.0  # time in which llama-server loaded the saved conversation; added to its time

    @property
    def ms(self) -> tuple[float, ...]:
        """Milliseconds from the request to the first text, of each server."""
        ours, theirs = (turn.first_ms for turn in self.turns)
        return ours, theirs + self.restore_ms


def line(sample: Sample) -> str:
    pairs = zip(sample.ms, sample.turns, strict=True)
    parts = [f"{ms:8.1f} ms ({turn.n_cached} of {turn.n_prompt} cached)" for ms, turn in pairs]
    return f"{sample.history:5} {sample.scenario:33}: {' | '.join(parts)}"


def table(samples: Sequence[Sample]) -> str:
    """Return markdown: scenarios in the order of their first occurrence, each by history. Pure."""
    heads = "turn | history | prompt tokens | duo, ms | llama-server, ms | ratio"
    heads += " | duo, cached tokens | llama-server, cached tokens | restoring, ms"
    order = list(dict.fromkeys(sample.scenario for sample in samples))
    found: dict[tuple[str, int], list[Sample]] = {}
    for sample in sorted(samples, key=lambda sample: (order.index(sample.scenario), sample.history)):
        found.setdefault((sample.scenario, sample.history), []).append(sample)
    rows = [[scenario, str(history), *_cells(some)] for (scenario, history), some in found.items()]
    return report.table(heads, rows)


def _cells(samples: Sequence[Sample]) -> list[str]:
    """Return medians. The prompt's tokens are duo's; the ratio is duo's time to llama-server's."""
    by_server = list(zip(*(sample.turns for sample in samples), strict=True))
    ms = [f"{median(times):.1f}" for times in zip(*(sample.ms for sample in samples), strict=True)]
    ratio = median(ours / theirs for ours, theirs in (sample.ms for sample in samples))
    cached = [f"{median(turn.n_cached for turn in turns):.0f}" for turns in by_server]
    n_prompt = f"{median(turn.n_prompt for turn in by_server[0]):.0f}"
    return [n_prompt, *ms, f"{ratio:.2f}", *cached, f"{median(s.restore_ms for s in samples):.1f}"]


# -- the contest ----------------------------------------


def settle(processes: Sequence[Process]) -> None:
    """Wait, at most MOVED_S, until the servers use no CPU: one that saves would slow the other."""
    deadline = time.monotonic() + MOVED_S
    while any(idle_cpu(processes, TURN_POLL_S)) and time.monotonic() < deadline:
        pass


class Contest:
    """Asks duo and llama-server, and keeps the samples.

    The server that is asked first alternates.
    """

    def __init__(self, servers: Sequence[Process], author: Author, args: argparse.Namespace) -> None:
        self.samples: list[Sample] = []
        self._servers = servers
        self._author = author
        self._max_tokens: int = args.max_tokens
        self._n_sharing: int = args.conversations
        self._n_system: int = args.system
        self._n_asked = 0
        self._rounds = Counter[int]()  # by history
        self._n_template = 0  # tokens that it adds to one message

    def warm_up(self) -> None:
        """Have both servers answer once. Raises ReplyError."""
        short = self._ask(self._converse(self._author.opening(SHORT_TOKENS)))
        self._n_template = short[0].n_prompt - SHORT_TOKENS

    def round(self, history: int) -> None:
        """Run every scenario once. Raises ReplyError, StartupError."""
        self._n_asked = self._rounds[history]  # who was first in a scenario is second in the next round
        self._rounds[history] += 1
        conversation = self._converse(self._author.opening(history))
        self._note(COLD, history, self._ask(conversation))
        warm = self._note(WARM, history, self._go_on(conversation))
        opening = "".join(message["content"] for message in conversation.opening)[:TITLE_CHARS]
        title = self._converse([{"role": "user", "content": TITLE_OF + opening}])
        self._note(TITLE, history, self._ask(title))
        self._note(AFTER, history, self._go_on(conversation))
        alone = self._author.opening(max(1, warm[0].n_prompt - warm[0].n_cached - self._n_template))
        self._note(ALONE, history, self._ask(self._converse(alone)))
        self._rotate(history)
        self._note(BACK, history, self._go_on(conversation))
        self._restart(history, conversation)

    def _rotate(self, history: int) -> None:
        """Take turns of conversations that share a system prompt.

        The first turn of the first one is cold, so it is not noted.
        """
        n_system = min(self._n_system, history)
        system = self._author.system(n_system)
        n_own = max(SHORT_TOKENS, history - n_system)
        sharing = [self._converse([system, *self._author.opening(n_own)]) for _ in range(self._n_sharing)]
        self._ask(sharing[0])
        for conversation in sharing[1:]:
            self._note(FIRST, history, self._ask(conversation))
        for conversation in sharing:
            self._note(SECOND, history, self._go_on(conversation))

    def _restart(self, history: int, conversation: Conversation) -> None:
        """Restart the servers, and take a turn.

        llama-server must be told to save and restore its latest conversation.
        """
        ours, theirs = self._servers
        slots: list[dict[str, Any]] = call_json(theirs.port, "/slots")
        latest = max(slots, key=lambda slot: int(slot.get("id_task", -1)))
        call(theirs.port, f"/slots/{latest['id']}?action=save", {"filename": SLOT_FILE})
        ours.restart()
        theirs.restart()
        began = time.perf_counter()
        call(theirs.port, "/slots/0?action=restore", {"filename": SLOT_FILE})
        restore_ms = 1000 * (time.perf_counter() - began)
        self._note(DISK, history, self._go_on(conversation), restore_ms)

    def _converse(self, opening: Sequence[Message]) -> Conversation:
        return Conversation(opening, len(self._servers))

    def _go_on(self, conversation: Conversation) -> list[Reply]:
        conversation.say(QUESTION)
        return self._ask(conversation)

    def _ask(self, conversation: Conversation) -> list[Reply]:
        """Ask each server, return the turns in order, and add the replies to the conversation."""
        n = len(self._servers)
        turns: dict[int, Reply] = {}
        for i in ((self._n_asked + j) % n for j in range(n)):
            settle(self._servers)
            prompt = Prompt("turn", conversation.messages(i))
            turns[i] = ask(self._servers[i].port, prompt, self._max_tokens)
            conversation.hear(i, turns[i].text)
        self._n_asked += 1
        return [turns[i] for i in range(n)]

    def _note(
        self, scenario: str, history: int, turns: Sequence[Reply], restore_ms: float = 0.0
    ) -> Sequence[Reply]:
        self.samples.append(Sample(scenario, history, tuple(turns), restore_ms))
        print(line(self.samples[-1]), flush=True)
        return turns


def commands(args: argparse.Namespace, directory: Path) -> tuple[Command, Command]:
    """Return duo and llama-server; each has a folder of its own in `directory`."""
    common = options_of(args, "model", "ctx_size", "parallel", "threads", "cache_ram")
    ours: Options = {"cache_dir": directory / "duo", "cache_disk": args.cache_disk, "draft_max": 0}
    theirs: Options = {"slots": True, "slot_save_path": f"{directory / 'llama'}/", "cache_reuse": 256}
    return (
        Command("duo", duo("serve", *args.duo_flags, **common, **ours)),
        Command("llama-server", llama_server(args.llama_server, *args.llama_flags, **common, **theirs)),
    )


def compare(args: argparse.Namespace) -> list[Sample]:
    """Run rounds. Raises DuoError."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="duo-turns-")))
        for name in ("duo", "llama"):
            (directory / name).mkdir()
        servers = start(stack, commands(args, directory))
        contest = Contest(servers, Author(lambda text: pieces_of(servers[1].port, text)), args)
        contest.warm_up()
        for _ in range(args.rounds):
            for history in args.histories:
                contest.round(history)
        return contest.samples


def measure(args: argparse.Namespace) -> program.Result:
    """Measure all turns and return the section. Raises DuoError."""
    if not args.llama_server:
        raise StartupError("give --llama-server")
    args.llama_server = program.binary(args.llama_server)
    args.model = args.model or bundled_400m()
    what = (
        f"{report.model_line(args.model)}; {args.threads} threads; {args.ctx_size} KV cells and "
        f"{args.parallel} slots each. Time to first text, streaming, temperature 0; medians over "
        f"{args.rounds} rounds; {args.conversations} conversations share a system prompt of at most "
        f"{args.system} tokens. The ratio is duo's time to llama-server's. Restoring is llama-server's "
        "POST /slots, and part of its turn."
    )
    return "turns", [what, table(compare(args))]


def _parser() -> argparse.ArgumentParser:
    shared = ("llama-server", "inflated", "threads", "duo-flags", "rounds", "max-tokens")
    what = "Time to the first text, beside llama-server."
    parser = program.make_parser("turns", what, *shared, rounds=4, max_tokens=16)
    add = parser.add_argument
    add("--ctx-size", type=int, default=16384, help="KV cells of each server, all slots")
    add("--parallel", type=int, default=4, help="slots of each server")
    add("--cache-ram", type=int, default=4096, help="MiB of memory for evicted conversations")
    add("--cache-disk", type=int, default=8192, help="MiB of disk for them")
    add("--histories", type=program.numbers, default=[1000, 2000, 3500], help="in tokens")
    add("--system", type=int, default=1000, help="tokens of the shared system prompt")
    add("--conversations", type=int, default=8, help="how many share it")
    add("--llama-flags", type=str.split, default=[], help="more flags for llama-server")
    return parser


main = program.main(_parser, measure)

if __name__ == "__main__":
    sys.exit(main())
