"""Servers side by side: each prompt goes to all in turn, and ratios are between replies to one prompt."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.client import Reply, ReplyError, ask
from benchmarks.processes import Process
from benchmarks.prompts import Prompt, load

SHORTEST = 16  # tokens; below, the rate of a reply is mostly the clock's error
WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Heat:
    """One prompt, asked once of every server; replies in the servers' order."""

    prompt: Prompt
    replies: list[Reply]


@dataclass(frozen=True, slots=True)
class Standing:
    """One server over all heats. Rates are medians; ratios are medians over heats of this server's rate by
    the first server's. Heats with a reply below SHORTEST tokens count for texts and drafts only.
    total_rate: tokens of all heats by their seconds, without each first token and its time."""

    name: str
    server_rate: float | None
    client_rate: float | None
    server_ratio: float | None
    client_ratio: float | None
    first_ms: float
    n_equal: int
    n_heats: int
    n_drafted: int
    n_accepted: int
    total_rate: float | None = None

    @property
    def acceptance(self) -> float | None:
        return self.n_accepted / self.n_drafted if self.n_drafted else None


def run(
    servers: Sequence[Process],
    prompts: Sequence[Prompt],
    max_tokens: int,
    on_heat: Callable[[Heat], None] = lambda heat: None,
    left_out: list[str] | None = None,
) -> list[Heat]:
    """Ask every server every prompt, one request at a time; each prompt is asked first of another server.
    Raises ReplyError. left_out: a prompt that a server other than duo fails to answer adds a line here and
    has no heat, instead of raising."""
    heats: list[Heat] = []
    for i, prompt in enumerate(prompts):
        order = [(i + j) % len(servers) for j in range(len(servers))]
        replies: dict[int, Reply] = {}
        for j in order:
            try:
                replies[j] = _asked(servers[j], prompt, max_tokens)
            except ReplyError as error:
                if left_out is None or servers[j].name.startswith("duo"):
                    raise
                left_out.append(str(error))
                break
        else:
            heats.append(Heat(prompt, [replies[j] for j in range(len(servers))]))
            on_heat(heats[-1])
    return heats


def _asked(server: Process, prompt: Prompt, max_tokens: int) -> Reply:
    """Raises ReplyError with the server's name, StartupError if that server has ended."""
    try:
        with server.company():
            return ask(server.port, prompt, max_tokens)
    except ReplyError as error:
        server.check_alive()
        raise ReplyError(f"{server.name}, {prompt.id}: {error}") from error


def standings(names: Sequence[str], heats: Sequence[Heat]) -> list[Standing]:
    """Pure. All servers are compared with the first."""
    return [_standing(name, heats, i) for i, name in enumerate(names)]


def warm_up(servers: Sequence[Process]) -> None:
    """Raises ReplyError."""
    run(servers, load(1), WARM_UP_TOKENS)


def _standing(name: str, heats: Sequence[Heat], i: int) -> Standing:
    own = [heat.replies[i] for heat in heats]
    long = [heat for heat in heats if min(reply.n_tokens for reply in heat.replies) >= SHORTEST]
    pairs = [(heat.replies[i], heat.replies[0]) for heat in long]
    return Standing(
        name=name,
        server_rate=_median([mine.server_rate for mine, _ in pairs]),
        client_rate=_median([mine.client_rate for mine, _ in pairs]),
        server_ratio=_median([_ratio(mine.server_rate, first.server_rate) for mine, first in pairs]),
        client_ratio=_median([_ratio(mine.client_rate, first.client_rate) for mine, first in pairs]),
        first_ms=statistics.median(reply.first_ms for reply in own),
        n_equal=sum(heat.replies[i].text == heat.replies[0].text for heat in heats),
        n_heats=len(heats),
        n_drafted=sum(reply.n_drafted for reply in own),
        n_accepted=sum(reply.n_accepted for reply in own),
        total_rate=_total(own),
    )


def _total(replies: Sequence[Reply]) -> float | None:
    timed = [(reply.n_tokens - 1, reply.client_rate) for reply in replies if reply.client_rate]
    seconds = sum(n / rate for n, rate in timed)
    return sum(n for n, _ in timed) / seconds if seconds else None


def _ratio(mine: float | None, first: float | None) -> float | None:
    return mine / first if mine and first else None


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
