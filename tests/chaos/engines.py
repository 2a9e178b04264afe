"""Engines and browsers that draft badly, by seeds: `python -m tests.chaos.engines --seeds 200`.

The clock is virtual. The lead's engine and proposer and the drafter's worker are real, and so is the link to
a browser. An engine knows the text that the lead would write, and changes its mood at moments that the seed
chooses: it is slow, lies, breaks off, says nothing more, or leaves and comes back. Prints a line for each
seed: what it cost by the time without drafts. Exit status 1 if a text changed, or a seed cost more than
MOST_COST.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from benchmarks.machines import REPACKED
from server.engine.engine import Engine
from server.engine.events import Committed, Event, Finished
from server.engine.proposer import NoProposer, Proposer
from server.engine.request import GenerationRequest
from server.engine.scheduler import Limits
from server.sampling.params import SamplingParams
from server.speculation.policy import Policy
from server.speculation.sources.remote import RemoteDrafters
from server.speculation.speculator import Speculator
from server.speculation.step_times import StepTimes
from tests.benchmarks.virtual import LEAD, PROMPT, PacedBackend, World
from tests.chaos.moody import N_TOKENS, DrafterBus, Moods, Speaker, VirtualBrowser, VirtualEngine
from tests.chaos.seeds import seeds_of
from tests.checks import check_engine
from tests.fake_backend import FakeModel

MOST_COST = 0.02  # by the time without drafts
MODEL = FakeModel(eog_rate=0.0)
MOST_AHEAD, MOST_ROWS = 32, 65


@dataclass(frozen=True, slots=True)
class Played:
    """A generation: its text, its virtual seconds, and its accepted guesses."""

    tokens: tuple[int, ...]
    seconds: float
    n_accepted: int


def play(
    kind: str, text: Sequence[int], seed: int, moods: Moods | None = None, *, gate: bool = True
) -> Played:
    """Write the text with one drafter, an engine or a browser, whose moods are given or the seed's."""
    world, chance = World(), Random(seed)
    speaker = Speaker(world, text, moods or Moods.of(seed), chance)
    bus = DrafterBus(world)
    remote = RemoteDrafters(bus, LEAD, max_ahead=MOST_AHEAD, clock=world.clock)
    bus.start(remote)
    browser = VirtualBrowser(speaker, bus) if kind == "browser" else None
    if browser is None:
        bus.join(VirtualEngine(speaker, bus))
    known = {n: REPACKED.step_s(n) for n in range(1, MOST_ROWS + 1)}
    times = StepTimes(MOST_ROWS, known)
    policy = Policy(max_rows=MOST_ROWS, lookup=False, gate=gate)
    try:
        return generated(world, Speculator(policy, remote=remote, times=times, clock=world.clock))
    finally:
        if browser:
            browser.close()


def plain() -> Played:
    """Write the text without drafts."""
    return generated(World(), NoProposer())


def generated(world: World, proposer: Proposer) -> Played:
    n_cells = len(PROMPT) + N_TOKENS + MOST_ROWS
    backend = PacedBackend(
        MODEL,
        n_cells=n_cells,
        n_ctx=n_cells,
        n_seqs=4,
        n_batch=MOST_ROWS,
        pace=lambda n: world.advance(round(1e6 * REPACKED.step_s(n))),
    )
    events: list[Event] = []
    engine = Engine(
        backend,
        proposer,
        lambda _, event: events.append(event),
        n_slots=1,
        limits=Limits(n_batch=MOST_ROWS, draft_max=MOST_ROWS - 1),
        clock=world.clock,
    )
    engine.submit(1, GenerationRequest(PROMPT, SamplingParams(temperature=0.0), N_TOKENS))
    world.advance()
    while engine.step():
        world.advance()
    check_engine(engine)
    tokens = [token for event in events if isinstance(event, Committed) for token in event.tokens]
    last = events[-1]
    assert isinstance(last, Finished), last
    return Played((*PROMPT, *tokens), last.stats.predicted_ms / 1e3, last.stats.n_accepted)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.engines", description="Engines that draft badly."
    )
    parser.add_argument("--seeds", type=seeds_of, default=range(100), help="how many, or FIRST-LAST")
    seeds: range = parser.parse_args().seeds
    alone, costs = plain(), list[float]()
    n_changed = n_accepted = 0
    for kind in ("engine", "browser"):
        for seed in seeds:
            played = play(kind, alone.tokens, seed)
            costs.append(played.seconds / alone.seconds - 1)
            n_changed += played.tokens != alone.tokens
            n_accepted += played.n_accepted
            print(f"{kind} {seed}: {costs[-1]:+.4f}, {played.n_accepted} accepted", flush=True)
    n_dear = sum(cost > MOST_COST for cost in costs)
    print(f"{n_changed} texts changed, {n_dear} of {len(costs)} cost more than {MOST_COST}")
    print(f"the dearest cost {max(costs):+.4f}")
    print(f"{n_accepted} guesses were accepted")
    return bool(n_changed or n_dear)


if __name__ == "__main__":
    sys.exit(main())
