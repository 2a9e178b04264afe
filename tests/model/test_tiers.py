"""Conversations that leave the KV cache of a real model.

From every tier, and after a restart, the text is that of a cache that was never left.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from server.cache.files import DiskTier
from server.cache.snapshots import Snapshots
from server.engine.engine import Engine
from server.engine.proposer import NoProposer
from server.engine.request import GenerationRequest
from server.engine.scheduler import Limits
from server.llama.llamacpp import LlamaBackend
from server.sampling.params import SamplingParams
from tests.model.live import Padded
from tests.support import Outcome

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

TOPICS = ("regular expressions", "binary search", "hash tables", "recursion")
TURNS = 3


class Tiered:
    """An engine with room for one conversation beside the running one."""

    def __init__(self, backend: LlamaBackend, snapshots: Snapshots | None, n_kept: int) -> None:
        self._outcomes: dict[int, Outcome] = {}
        padded = Padded(backend)
        padded.n_seqs = n_kept
        self.engine = Engine(
            padded,
            NoProposer(),
            lambda id, event: self._outcomes[id].events.append(event),
            n_slots=1,
            limits=Limits(leaves=1),
        )
        if snapshots is not None:
            self.engine.residence.save_to(snapshots)
        self.engine.residence.move_costs.token_s.value = 1.0  # loading pays
        self.ready = threading.Event()

    def ask(self, tokens: list[int], seed: int) -> Outcome:
        id = len(self._outcomes) + 1
        self._outcomes[id] = Outcome()
        sampling = SamplingParams(1.0, 0, 1.0, 0.0, seed)
        self.engine.submit(id, GenerationRequest(tokens, sampling, 24))
        while not self._outcomes[id].ended:
            if not self.engine.step():
                assert self.ready.wait(10.0)
        return self._outcomes[id]


def opening(backend: LlamaBackend, topic: str) -> list[int]:
    text = f"<|im_start|>user\nGive an introduction to {topic}. " + "Be clear. " * 20
    return backend.vocab.tokenize(f"{text}<|im_end|>\n<|im_start|>assistant\n", special=True)


def converse(backend: LlamaBackend, tiered: Tiered, turns: range, said: list[list[int]]) -> list[int]:
    """Run turns of all conversations in rotation and return how much of each was cached.

    The replies are appended to `said`.
    """
    more = backend.vocab.tokenize("<|im_end|>\n<|im_start|>user\nGo on.<|im_end|>\n", special=True)
    cached: list[int] = []
    for turn in turns:
        for i, history in enumerate(said):
            outcome = tiered.ask(list(history), seed=10 * turn + i)
            cached.append(outcome.started.n_cached)
            history += [*outcome.tokens, *more]
    return cached


@pytest.fixture(scope="module")
def plain(f32_target: LlamaBackend) -> list[list[int]]:
    """Return the replies where nothing has to leave the cache."""
    said = [opening(f32_target, topic) for topic in TOPICS]
    converse(f32_target, Tiered(f32_target, None, 6), range(TURNS), said)
    return said


def test_by_way_of_host_memory(f32_target: LlamaBackend, plain: list[list[int]]):
    snapshots = Snapshots(memory_bytes=1 << 30)
    said = [opening(f32_target, topic) for topic in TOPICS]
    cached = converse(f32_target, Tiered(f32_target, snapshots, 2), range(TURNS), said)
    assert said == plain
    assert min(cached[len(TOPICS) :]) > 60
    assert snapshots.counters().hits >= len(TOPICS)


def test_tiers_survive_disk_and_restart(f32_target: LlamaBackend, plain: list[list[int]], tmp_path: Path):
    said = [opening(f32_target, topic) for topic in TOPICS]
    cached: list[int] = []
    for turn in range(TURNS):  # a server for each turn
        disk = DiskTier(tmp_path, budget_bytes=1 << 30, fingerprint="f32")
        ready = threading.Event()
        snapshots = Snapshots(memory_bytes=0, disk=disk, on_ready=ready.set)
        tiered = Tiered(f32_target, snapshots, 2)
        tiered.ready = ready
        cached += converse(f32_target, tiered, range(turn, turn + 1), said)
        tiered.engine.residence.save_all(20.0)
        snapshots.close()
    assert said == plain
    assert min(cached[len(TOPICS) :]) > 60


def test_a_state_of_another_model_is_refused(f32_target: LlamaBackend, q8_target: LlamaBackend):
    """llama.cpp itself refuses it if a file claims to be another model's, and it is evaluated instead."""
    snapshots = Snapshots(memory_bytes=1 << 30)
    history = opening(f32_target, TOPICS[0])
    snapshots.put(history, "", b"no state at all" * 100)
    tiered = Tiered(q8_target, snapshots, 2)
    outcome = tiered.ask(history, 1)
    assert outcome.started.n_cached == 0
    assert len(outcome.tokens) == 24
    assert snapshots.match(history) is None
