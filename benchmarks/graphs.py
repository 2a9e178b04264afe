"""Run a prediction block on an emulated GPU that replays recorded graphs: `python -m benchmarks.graphs`.

Model, block, engine and proposer are real and compute on the CPU. By the virtual clock, a step takes the time
that GPUS gives, and more after a change of width (docs/adr/0010). So results have no noise, and the first
replies of a new lead can be compared with plain steps. Easy and hard prompts are shuffled, since their order
decides what a lead learns.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks import program, report, texts
from benchmarks.clocked import CLOCKED_BATCH, DRAFT_MAX, LEAVES
from benchmarks.inside import HARD, SHORTEST, SLOW
from benchmarks.machines import Machine
from benchmarks.prompts import PYTHON, hard, load
from benchmarks.texts import N_CELLS, WAYS
from benchmarks.with_block import BLOCK, join
from server.engine.engine import Engine
from server.engine.events import Event, Finished
from server.engine.proposer import NoProposer, Proposer
from server.engine.request import GenerationRequest
from server.engine.scheduler import Limits
from server.llama.backend import CELLS_STEP, Batch, Hidden, Logits
from server.llama.llamacpp import LlamaBackend, LlamaOptions
from server.llama.mtp import LlamaBlock
from server.llama.options import Weights
from server.llama.with_block import Path as BlockPath
from server.llama.with_block import WithBlock
from server.sampling.params import SamplingParams
from server.speculation.policy import Policy
from server.speculation.shape_times import ShapeTimes
from server.speculation.sources.block_draft import BlockDraft
from server.speculation.speculator import Speculator
from server.speculation.step_times import StepTimes
from tests.benchmarks.virtual import World

MAX_STEP_ROWS = 64
PROMPT_ROWS = 34  # of a decode from which it is a prompt's: a step has at most 33
WAYS_ASKED = "temperature 0", "temperature 1"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU's times in milliseconds. The mappings are by rows of a step."""

    steady: dict[int, float]  # a step after steps of the same shape
    built: dict[int, float]  # extra of the first step of a shape
    recorded: dict[int, float]  # extra of the second step of a shape
    renewed: dict[int, float]  # the same if the graph has recorded as many rows with other numbers of cells
    again: float = 1.1  # extra of a step whose graph is recorded, after a step of another shape
    guess: float = 0.45  # a guess of the block between steps
    unlike: float = 0.25  # extra of a guess if the block's decode before had another number of rows
    read: float = 3.5  # extra of a guess that also evaluates a prompt
    beside: float = 0.15  # extra of a step during which the block guesses
    read_beside: float = 0.2  # extra of a step during which the block evaluates a prompt
    outside: float = 0.25  # Python of a step
    drafted: float = 0.45  # extra Python of a step for which the block has guessed


# The bundled target with its block at the cost of 8B, on an H100, 2026-11-26: F16 by traces of leads, Q8_0 by
# decodes in the order in question, medians of four; `drafted` by a trace of a lead, 2026-11-27; `beside`
# and `read_beside` by decodes of Q8_0, 2026-11-28
GPUS = {
    "8B F16": Gpu(
        {1: 5.8, 2: 7.2, 4: 7.5, 8: 7.8, 12: 8.1, 33: 8.9},
        {1: 1.5, 4: 1.9, 12: 1.8, 33: 3.0},
        {1: 3.7, 4: 6.4, 8: 6.5, 12: 7.0, 33: 13.0},
        {1: 1.4, 4: 2.4, 12: 2.6, 33: 6.4},
    ),
    "8B Q8_0": Gpu(
        {1: 4.4, 2: 4.8, 4: 5.2, 8: 7.2, 12: 8.1, 17: 8.9, 33: 10.3},
        {1: 1.3, 4: 1.5, 8: 1.8, 12: 2.2, 33: 2.0},
        {1: 3.7, 4: 6.6, 8: 6.9, 12: 8.6, 16: 8.3, 33: 5.4},
        {1: 1.4, 4: 2.5, 8: 3.3, 12: 3.9, 33: 4.3},
        guess=0.4,
    ),
}


class Graphs:
    """The cost of changes of shape.

    own: True if each shape has its own graph (graph_keys.py).
    """

    def __init__(self, gpu: Gpu, *, own: bool) -> None:
        self._gpu, self._own = gpu, own
        self._before: list[int] = []  # sequences of the latest decode's rows
        self._graphs: dict[tuple[int, int], _Graph] = {}  # by shapes, if each has its own

    def extra_ms(self, batch: Batch, n_cells: int) -> float:
        """Return the extra milliseconds of this decode over one after equal ones.

        n_cells: Cells in use.
        """
        n_rows, before, self._before = len(batch), self._before, batch.seqs
        built = before != batch.seqs if self._own else len(before) != n_rows
        if n_rows >= PROMPT_ROWS:
            if not self._own:
                self._graphs.clear()
            return 0.0
        shape = n_rows, n_cells // CELLS_STEP
        graph = self._graphs.setdefault(shape if self._own else (0, 0), _Graph())
        n_equal = graph.shown(shape)
        if n_equal == 0:
            return _between(self._gpu.built, n_rows)
        building_ms = self._gpu.again if built else 0.0
        if n_equal > 1:
            return building_ms
        known, graph.n_rows = graph.n_rows == n_rows, n_rows
        return building_ms + _between(self._gpu.renewed if known else self._gpu.recorded, n_rows)


@dataclass(slots=True)
class _Graph:
    """A recorded graph."""

    shape: tuple[int, int] = (0, 0)  # of the latest decode: rows, cells in CELLS_STEP
    n_equal: int = 0  # decodes of this shape just before the latest one
    n_rows: int = 0  # rows of the recorded decode

    def shown(self, shape: tuple[int, int]) -> int:
        """Note a decode; return how many of its shape came just before."""
        self.n_equal = self.n_equal + 1 if shape == self.shape else 0
        self.shape = shape
        return self.n_equal


def _between(known: dict[int, float], n_rows: int) -> float:
    return float(np.interp(n_rows, list(known), list(known.values())))


class TimedModel(WithBlock):
    """A model that moves the clock by a GPU's times."""

    def __init__(self, target: LlamaBackend, block: LlamaBlock, gpu: Gpu, graphs: Graphs) -> None:
        super().__init__(target, block)
        self.world = World()
        self._gpu, self._graphs, self._machine = gpu, graphs, Machine(gpu.steady, gpu.guess, 0.0)
        self._n_before = 0  # rows of the block's decode before
        self._has_guessed = False  # for this step
        self._decoding = False
        self.overlaps = True

    def decode(self, batch: Batch) -> Logits:
        self._decoding = True
        logits = super().decode(batch)
        self._decoding = False
        step_ms = 1e3 * self._machine.step_s(len(batch)) + self._graphs.extra_ms(batch, self._n_cells())
        outside_ms = self._gpu.outside + (self._gpu.drafted if self._has_guessed else 0.0)
        self._has_guessed = False
        self.world.advance(round(1e3 * (step_ms + outside_ms)))
        return logits

    def _n_cells(self) -> int:
        """Return the cells in use by conversations."""
        return sum(map(self.length, range(self.n_seqs // LEAVES)))

    def read(self, seq: int) -> None:
        super().read(seq)
        self.world.advance(round(1e3 * self._gpu.read_beside))

    def guess(self, paths: Sequence[BlockPath], depth: int) -> tuple[Logits, Hidden]:
        n_rows = sum(1 if path.hidden is not None else self.n_late(path.seq) + 1 for path in paths)
        found = super().guess(paths, depth)
        if self._decoding:
            self.world.advance(round(1e3 * self._gpu.beside))
            self._n_before = n_rows
            return found
        extra = self._gpu.unlike if n_rows != self._n_before else 0.0
        extra += self._gpu.read if n_rows > DRAFT_MAX else 0.0
        self._n_before, self._has_guessed = n_rows, True
        self.world.advance(round(1e3 * (self._gpu.guess + extra)))
        return found


@dataclass(frozen=True, slots=True)
class Asked:
    prompt: tuple[int, ...]
    sampling: SamplingParams


def speculator(model: TimedModel, gpu: Gpu, *, own: bool) -> Speculator:
    """Return the speculator that a lead on this GPU makes at its start."""
    known = {n: ms / 1e3 for n, ms in gpu.steady.items()}
    curve = Machine(gpu.steady, gpu.guess, 0.0)
    calibrated = {n: curve.step_s(n) + gpu.outside / 1e3 for n in range(1, MAX_STEP_ROWS + 1)}
    wide = [_between(gpu.built, n) for n in known if n > 1]
    change_ms = gpu.again if own else sum(wide) / len(wide)
    times = StepTimes(MAX_STEP_ROWS, calibrated, ShapeTimes(known, change_ms / 1e3))
    inline = BlockDraft(model, clock=model.world.clock)
    for _ in range(8):
        inline.td.observe(gpu.guess / 1e3)
    policy = Policy(leaves=LEAVES, lookup=False, max_rows=MAX_STEP_ROWS, overlaps=True)
    return Speculator(policy, inline=inline, times=times, clock=model.world.clock)


def replies(
    model: TimedModel, proposer: Proposer, asked: Sequence[Asked], n: int
) -> dict[int, tuple[int, float]]:
    """Generate replies in sequence; return tokens and seconds of each after its first token."""
    ends: dict[int, tuple[int, float]] = {}

    def happened(id: int, event: Event) -> None:
        if isinstance(event, Finished):
            ends[id] = event.stats.n_predicted - 1, event.stats.predicted_ms / 1e3

    limits = Limits(n_batch=CLOCKED_BATCH, draft_max=DRAFT_MAX, leaves=LEAVES)
    engine = Engine(model, proposer, happened, n_slots=1, limits=limits, clock=model.world.clock)
    for id, one in enumerate(asked):
        engine.submit(id, GenerationRequest(one.prompt, one.sampling, n, stop_tokens=model.vocab.eog))
        while engine.step():
            pass
    for seq in range(model.n_seqs):
        model.trim(seq, 0)
    return {id: end for id, end in ends.items() if end[0] >= SHORTEST}


def measure(args: argparse.Namespace) -> program.Result:
    """Run the emulated GPU and return the section. Raises DuoError."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "with-block.gguf"
        join(args.model, BLOCK, path)
        options = LlamaOptions(
            path, N_CELLS, 2 * LEAVES, n_threads=args.threads, n_tail=16, weights=Weights(mtp=True)
        )
        with closing(LlamaBackend(options)) as target, closing(LlamaBlock(target)) as block:
            rows = [
                row
                for name in GPUS
                for order in args.orders
                for row in _rows(target, block, name, order, args)
            ]
    heads = ["GPU", "order", "graphs", "in all", "median", "slowest", f"below {SLOW}", "hard ones"]
    what = f"By plain steps. At most {args.max_tokens} tokens, {len(WAYS_ASKED)} ways of sampling."
    return "a prediction block on a GPU that records graphs", [what, report.table(heads, rows, n_words=3)]


def _rows(
    target: LlamaBackend, block: LlamaBlock, name: str, order: int, args: argparse.Namespace
) -> list[list[str]]:
    prompts = [*texts.prompt_ids(target, load(args.prompts, PYTHON)), *texts.prompt_ids(target, hard())]
    ways = [WAYS[way] for way in WAYS_ASKED]
    asked = [Asked(prompt, way.reseeded(i)) for way in ways for i, prompt in enumerate(prompts, 1)]
    random.Random(order).shuffle(asked)
    gpu, rows = GPUS[name], list[list[str]]()
    for own in (False, True):
        plain, drafted = (TimedModel(target, block, gpu, Graphs(gpu, own=own)) for _ in range(2))
        alone = replies(plain, NoProposer(), asked, args.max_tokens)
        found = replies(drafted, speculator(drafted, gpu, own=own), asked, args.max_tokens)
        graphs = "one for each shape" if own else "one for all"
        rows.append([name, str(order), graphs, *_figures(alone, found)])
    return rows


def _figures(alone: dict[int, tuple[int, float]], found: dict[int, tuple[int, float]]) -> list[str]:
    """Return table cells that compare two runs. Their texts are equal, except after near-ties."""
    rates = [{id: n / seconds for id, (n, seconds) in each.items()} for each in (alone, found)]
    ratios = {id: rate / rates[0][id] for id, rate in rates[1].items() if id in rates[0]}
    poor = [id for id, ratio in ratios.items() if ratio < HARD]
    together = sum(found[id][0] / rates[0][id] for id in poor) / max(1e-9, sum(found[id][1] for id in poor))
    total = sum(found[id][0] / rates[0][id] for id in ratios) / sum(found[id][1] for id in ratios)
    n_slow = sum(ratio < SLOW for ratio in ratios.values())
    slowest, usual = min(ratios.values()), median(ratios.values())
    return [f"{total:.2f}", f"{usual:.2f}", f"{slowest:.2f}", f"{n_slow} of {len(ratios)}", f"{together:.2f}"]


def _parser() -> argparse.ArgumentParser:
    shared = ("model", "threads", "prompts", "max-tokens")
    what = "A prediction block on a GPU that replays recorded graphs, under a virtual clock."
    parser = program.make_parser("graphs", what, *shared, prompts=30, max_tokens=120)
    parser.add_argument("--orders", type=program.numbers, default=[5, 6], help="of the prompts")
    return parser


main = program.main(_parser, measure)

if __name__ == "__main__":
    sys.exit(main())
