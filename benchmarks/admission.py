"""What it takes to admit requests that come at once: `python -m benchmarks.admission --slots 4,16,64`.

Every slot gets a prompt at once, in a KV cache full of conversations that ended. An admission chooses a
sequence, frees it and copies what its prompt shares with others; nothing is decoded while it is timed.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import closing

from benchmarks import program, report
from server.cache.snapshots import Snapshots
from server.engine.admission import admit
from server.engine.endings import finish
from server.engine.events import Event
from server.engine.proposer import NoProposer
from server.engine.request import GenerationRequest
from server.engine.scheduler import Limits
from server.engine.session import Session
from server.engine.state import EngineState
from server.llama.backend import Backend, Batch
from server.llama.llamacpp import LlamaBackend, LlamaOptions
from server.llama.options import MAX_SEQS
from server.sampling.params import SamplingParams

N_SHARED, N_OWN = 10, 35  # tokens of a prompt: those of the template, and its own
HOST_BYTES = 2 << 30  # for conversations that leave the KV cache: duo's default is larger


def measure(backend: Backend, n_slots: int, n_rounds: int) -> list[float]:
    """Microseconds of an admission, one mean for each round."""
    state = EngineState(backend, NoProposer(), _ignore, n_slots, Limits(), time.perf_counter)
    state.residence.save_to(Snapshots(memory_bytes=HOST_BYTES))
    rng = random.Random(0)
    shared = _tokens(rng, backend.vocab.size, N_SHARED)
    while state.cache.n_cells < state.sequences.n_main * (N_SHARED + N_OWN):  # all sequences hold something
        _round(state, rng, shared)
    return [_round(state, rng, shared) for _ in range(n_rounds)]


def _round(state: EngineState, rng: random.Random, shared: list[int]) -> float:
    """As many sessions as there are slots, from their admission to their end."""
    backend = state.backend
    for i in range(state.n_slots):
        prompt = [*shared, *_tokens(rng, backend.vocab.size, N_OWN)]
        request = GenerationRequest(prompt, SamplingParams(temperature=0.0))
        state.waiting.append(Session(i, request, backend.n_ctx))
    began = time.perf_counter()
    admit(state)
    each_us = 1e6 * (time.perf_counter() - began) / state.n_slots
    for session in list(state.active):
        batch = Batch()
        batch.extend(session.seq, session.n_kv, session.tokens[session.n_kv :], 0)
        backend.decode(batch)
        session.evaluated(session.n_pending)
        finish(state, session, "stop")
    return each_us


def _tokens(rng: random.Random, n_vocab: int, n: int) -> list[int]:
    return [rng.randrange(n_vocab) for _ in range(n)]


def _ignore(_: int, event: Event) -> None:
    """Nobody listens."""


def table(found: Sequence[tuple[int, list[float]]]) -> str:
    """Markdown. found: slots, and microseconds of an admission by round."""
    rows = [(str(n), f"{statistics.median(us):.0f}", f"{min(us):.0f}", f"{max(us):.0f}") for n, us in found]
    return report.table(("slots", "µs", "least", "most"), rows, n_words=0)


def run(args: argparse.Namespace) -> program.Result:
    """Raises DuoError."""
    leaves, found = Limits().leaves, list[tuple[int, list[float]]]()
    for n_slots in args.slots:
        n_seqs = min(MAX_SEQS, 2 * leaves * n_slots)
        with closing(LlamaBackend(LlamaOptions(args.model, args.ctx_size, n_seqs))) as backend:
            found.append((n_slots, measure(backend, n_slots, args.rounds)))
    what = f"{report.model_line(args.model)}, {args.ctx_size} cells, prompts of {N_SHARED + N_OWN} tokens."
    return "what an admission takes", [f"{what} Medians of {args.rounds} rounds.", table(found)]


def _parser() -> argparse.ArgumentParser:
    parser = program.make_parser("admission", "Time of an admission.", "model", "rounds", rounds=9)
    parser.add_argument("--slots", type=program.numbers, default=[4, 16, 64], help="such as 4,64: in turn")
    parser.add_argument("--ctx-size", type=int, default=24576, help="cells of the KV cache")
    return parser


main = program.main(_parser, run)

if __name__ == "__main__":
    sys.exit(main())
