"""Conversations that leave the KV cache and come back: the same text, and nothing evaluated twice."""

from __future__ import annotations

import threading
from pathlib import Path

from server.cache.files import DiskTier
from server.cache.snapshots import Snapshots
from server.engine.request import GenerationRequest
from server.engine.scheduler import Limits
from server.errors import BackendError
from server.llama.backend import Batch, Logits
from server.sampling.params import SamplingParams
from tests.checks import check_snapshots
from tests.fake_backend import FakeBackend
from tests.support import Harness

ENOUGH = 1 << 24
LIMITS = Limits(n_batch=64, n_chunk=16, leaves=1)


def prompt(i: int, length: int = 100) -> list[int]:
    return [(i * 37 + j * 11) % 200 + 1 for j in range(length)]


def ask(tokens: list[int], salt: str = "", max_tokens: int = 8) -> GenerationRequest:
    return GenerationRequest(tokens, SamplingParams(1.0, seed=3), max_tokens, salt=salt)


def memory(n_bytes: int = ENOUGH) -> Snapshots:
    return Snapshots(memory_bytes=n_bytes)


class OnDisk:
    """A lead's tiers with a directory only, and a way to wait for it."""

    def __init__(self, directory: Path) -> None:
        self.ready = threading.Event()
        disk = DiskTier(directory, budget_bytes=ENOUGH, fingerprint="fake")
        self.snapshots = Snapshots(memory_bytes=0, disk=disk, on_ready=self.ready.set)


def harness(snapshots: Snapshots | None, n_seqs: int = 2, n_cells: int = 4096) -> Harness:
    backend = FakeBackend(n_seqs=n_seqs, n_cells=n_cells)
    found = Harness(backend, snapshots=snapshots, n_slots=1, limits=LIMITS)
    found.engine.residence.move_costs.token_s.value = 1.0  # loading always pays
    return found


def texts_of(found: Harness, rounds: int, n: int) -> tuple[list[tuple[int, ...]], list[int]]:
    """Return texts and cached tokens of n conversations that take turns."""
    histories = [prompt(i) for i in range(n)]
    texts: list[tuple[int, ...]] = []
    cached: list[int] = []
    for _ in range(rounds):
        for history in histories:
            (outcome,) = found.run(ask(list(history)))
            texts.append(outcome.tokens)
            cached.append(outcome.started.n_cached)
            history += [*outcome.tokens, 7, 8, 9]
    return texts, cached


def test_conversations_return_from_memory_whole():
    plain, _ = texts_of(harness(None, n_seqs=8), 4, 6)
    tiers = memory()
    texts, cached = texts_of(harness(tiers, n_seqs=2), 4, 6)
    assert texts == plain
    assert cached[:6] == [0] * 6
    assert cached[6:] == [107 + 11 * turn for turn in range(3) for _ in range(6)]
    assert tiers.counters().hits > 10
    check_snapshots(tiers)


def test_without_tiers_they_are_evaluated_again():
    texts, cached = texts_of(harness(None, n_seqs=2), 2, 6)
    assert texts == texts_of(harness(memory()), 2, 6)[0]
    assert sum(cached[6:]) < 3 * 107


def test_a_conversation_survives_a_restart_on_disk(tmp_path: Path):
    plain, _ = texts_of(harness(None, n_seqs=8), 2, 1)
    before = OnDisk(tmp_path)
    first = harness(before.snapshots)
    (outcome,) = first.run(ask(prompt(0)))
    assert outcome.tokens == plain[0]
    first.engine.residence.save_all(10.0)
    before.snapshots.close()

    after = OnDisk(tmp_path)
    second = harness(after.snapshots)
    (id,) = second.submit(ask([*prompt(0), *outcome.tokens, 7, 8, 9]))
    while not second.outcomes[id].ended:
        if not second.engine.step():
            assert after.ready.wait(10.0)
    assert second.outcomes[id].started.n_cached == 107
    assert second.outcomes[id].tokens == plain[1]
    after.snapshots.close()


def test_disk_read_delays_nobody(tmp_path: Path):
    before = OnDisk(tmp_path)
    first = harness(before.snapshots)
    (outcome,) = first.run(ask(prompt(0)))
    first.engine.residence.save_all(10.0)
    before.snapshots.close()
    after = OnDisk(tmp_path)
    second = harness(after.snapshots)
    back, other = second.submit(ask([*prompt(0), *outcome.tokens, 7]), ask(prompt(5)))
    second.engine.step()
    assert not second.outcomes[back].events  # on its way
    assert second.outcomes[other].events
    while not second.outcomes[back].ended:
        if not second.engine.step():
            assert after.ready.wait(10.0)
    assert second.outcomes[back].started.n_cached == 107
    after.snapshots.close()


def test_salts_do_not_share_anything():
    for tiers in (None, memory()):
        found = harness(tiers, n_seqs=2)
        cached: list[int] = []
        for salt in ("a", "b", "a", "c", "b"):
            (outcome,) = found.run(ask(prompt(1), salt))
            cached.append(outcome.started.n_cached)
        assert cached[:2] == [0, 0]
        assert cached[3] == 0
        assert cached[2] == 99


class Refusing(FakeBackend):
    """A backend whose states cannot be loaded."""

    def load(self, seq: int, data: bytes) -> None:
        super().load(seq, data[:80])
        super().load(seq, data)  # raises: it is not empty any more


def test_oversized_state_is_reevaluated():
    tiers = memory()
    backend = Refusing(n_seqs=2)
    found = Harness(backend, snapshots=tiers, n_slots=1, limits=LIMITS)
    found.engine.residence.move_costs.token_s.value = 1.0
    plain = texts_of(harness(None, n_seqs=8), 2, 4)[0]
    assert texts_of(found, 2, 4)[0] == plain
    check_snapshots(tiers)


def test_loaded_conversation_finds_room():
    """Three conversations take turns in a KV cache for two and a half."""
    plain = texts_of(harness(None, n_seqs=8), 3, 3)[0]
    tiers = memory()
    texts, cached = texts_of(harness(tiers, n_seqs=4, n_cells=300), 3, 3)
    assert texts == plain
    assert min(cached[3:]) >= 107


def test_a_thousand_conversations_through_eight_slots(tmp_path: Path):
    """Every conversation is answered without an error, and both tiers keep their budgets."""
    n_bytes = 40_000
    disk = DiskTier(tmp_path, budget_bytes=100_000, fingerprint="fake")
    ready = threading.Event()
    tiers = Snapshots(memory_bytes=n_bytes, disk=disk, backlog_bytes=n_bytes, on_ready=ready.set)
    found = Harness(FakeBackend(n_seqs=12), snapshots=tiers, n_slots=8, limits=LIMITS)
    for first in range(0, 1000, 50):
        ids = found.submit(*(ask(prompt(first + i, 70), max_tokens=2) for i in range(50)))
        while not all(found.outcomes[id].ended for id in ids):
            if not found.engine.step():
                assert ready.wait(10.0)
        assert all(len(found.outcomes[id].tokens) == 2 for id in ids)
        counted = tiers.counters()
        assert counted.memory_bytes <= 2 * n_bytes
        assert counted.disk_bytes <= 100_000
    tiers.at_work(False)
    assert tiers.flush(30.0) == 0
    check_snapshots(tiers)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 100_000
    tiers.close()


class Counting(FakeBackend):
    """A backend that counts the rows it decodes."""

    n_rows = 0

    def decode(self, batch: Batch) -> Logits:
        self.n_rows += len(batch)
        return super().decode(batch)


def test_a_side_request_evicts_no_live_conversation():
    backend = Counting(n_seqs=2)
    found = Harness(backend, n_slots=1, limits=LIMITS)
    history = prompt(3, 400)
    for turn in range(5):
        (outcome,) = found.run(ask(list(history)))
        assert outcome.started.n_cached == (len(history) - 4 if turn else 0)
        history += [*outcome.tokens, 7, 8, 9]
        found.run(ask([9, 8, 7, turn + 1] * 5))  # a title


class Watched(FakeBackend):
    """A backend that counts the states it is asked for."""

    n_saved = 0

    def save(self, seq: int) -> bytes:
        self.n_saved += 1
        return super().save(seq)


def resting(n_bytes: int, n: int = 3) -> tuple[Harness, Watched, Snapshots]:
    """Return an idle engine with n conversations in its KV cache and n_bytes of host memory."""
    backend, tiers = Watched(n_seqs=4, n_cells=4096), memory(n_bytes)
    found = Harness(backend, snapshots=tiers, n_slots=1, limits=LIMITS)
    for i in range(n):
        found.run(ask(prompt(i)))
    backend.n_saved = 0
    return found, backend, tiers


def test_idle_copy_spares_saving():
    found, backend, tiers = resting(ENOUGH)
    assert [found.engine.residence.copy_ahead() for _ in range(5)] == [True, True, True, False, False]
    assert backend.n_saved == 3
    assert tiers.counters().memory_snapshots == 0  # they are in the KV cache, and go nowhere
    found.engine.residence.save_all(1.0)
    assert backend.n_saved == 3
    assert tiers.counters().memory_snapshots == 3
    texts, cached = texts_of(found, 2, 3)
    assert cached == [99] * 3 + [107 + 11 * 0] * 3
    assert texts == texts_of(harness(None, n_seqs=8), 2, 3)[0]


def test_continued_conversation_is_copied_anew():
    found, backend, tiers = resting(ENOUGH, 1)
    found.engine.residence.copy_ahead()
    (outcome,) = found.run(ask([*prompt(0), *range(1, 30)]))
    assert outcome.started.n_cached >= 99
    found.engine.residence.save_all(1.0)
    assert backend.n_saved == 2
    ((tokens),) = tiers.conversations(most=9)
    assert tokens[:129] == (*prompt(0), *range(1, 30))


def test_a_copy_goes_with_its_conversation():
    found, backend, _ = resting(ENOUGH, 1)
    found.engine.residence.copy_ahead()
    residence = found.engine.residence
    copies = residence.copies
    assert copies.n_bytes > 0
    for seq in residence.cache.idle_contents():
        residence.erase(seq)
    assert copies.n_bytes == 0
    found.run(ask(prompt(0)))
    found.engine.residence.copy_ahead()
    assert copies.n_bytes > 0
    found.submit(ask(prompt(0)))
    found.engine.step()
    assert copies.n_bytes == 0  # it goes on: the copy is not of what it will be
    assert backend.n_saved == 2


def test_copies_yield_to_disk_reads(tmp_path: Path):
    before = OnDisk(tmp_path)
    first = harness(before.snapshots)
    first.run(ask(prompt(0)))
    first.engine.residence.save_all(10.0)
    before.snapshots.close()
    ready = threading.Event()
    disk = DiskTier(tmp_path, budget_bytes=ENOUGH, fingerprint="fake")
    size = disk.n_bytes
    tiers = Snapshots(memory_bytes=4 * size, disk=disk, on_ready=ready.set)
    second = harness(tiers, n_seqs=5)
    for more in ([], [7]):  # too little to be written again
        second.run(ask([*prompt(1), *more]))
        for _ in range(9):
            second.engine.residence.copy_ahead()
    copies = second.engine.residence.copies
    assert copies.n_bytes > 0
    (id,) = second.submit(ask([*prompt(0), 7]))
    while not second.outcomes[id].ended:
        if not second.engine.step():
            assert ready.wait(10.0)
            ready.clear()
    assert second.outcomes[id].started.n_cached >= 99
    assert copies.n_bytes + tiers.counters().memory_bytes <= 4 * size
    tiers.close()


class Exhausted(Watched):
    """A backend without memory for a state."""

    def save(self, seq: int) -> bytes:
        raise MemoryError


def test_no_memory_loses_only_states():
    found = Harness(Exhausted(n_seqs=2, n_cells=4096), snapshots=memory(), n_slots=1, limits=LIMITS)
    for i in range(4):
        (outcome,) = found.run(ask(prompt(i)))
        assert len(outcome.tokens) == 8
    found.engine.residence.copy_ahead()
    found.engine.residence.save_all(1.0)


def test_final_saving_yields_to_nobody(tmp_path: Path):
    tiers = OnDisk(tmp_path).snapshots
    found = harness(tiers)
    found.submit(ask(prompt(0), max_tokens=50))
    for _ in range(12):
        found.engine.step()
    found.engine.fail_all(BackendError("the end"))
    found.engine.residence.save_all(0.0)
    carriers = tiers._carriers  # pyright: ignore[reportPrivateUsage]
    assert carriers
    assert carriers.writer._free.is_set()  # pyright: ignore[reportPrivateUsage]
    tiers.close()


def test_copies_take_no_memory_that_snapshots_need():
    found, backend, tiers = resting(ENOUGH)
    found.engine.residence.save_all(1.0)
    size = tiers.counters().memory_bytes // 3
    found, backend, tiers = resting(2 * size + size // 2)
    for _ in range(5):
        found.engine.residence.copy_ahead()
    assert backend.n_saved in (2, 3)  # the third is too much
    found.engine.residence.save_all(1.0)
    assert tiers.counters().memory_snapshots == 2
    assert tiers.counters().memory_bytes <= 2 * size + size // 2
    found, backend, tiers = resting(0)
    found.engine.residence.copy_ahead()
    assert backend.n_saved == 0


def test_resting_sessions_leave_for_long_prompt():
    tiers = memory()
    found = harness(tiers, n_seqs=6)
    costs = found.engine.residence.move_costs
    for i in range(3):
        found.run(ask(prompt(i)))
    assert found.engine.residence.cache.n_cells > 300
    assert not tiers.counters().memory_snapshots
    for i in range(500):
        costs.stepped(0.01 * (i % 2), i % 2)  # 10 ms a cell
    found.run(ask(prompt(9, 700)))
    assert tiers.counters().memory_snapshots == 3
    (again,) = found.run(ask([*prompt(1), 3]))
    assert again.started.n_cached >= 100
    assert tiers.counters().hits == 1


def test_small_memory_serves_every_turn():
    """What leaves the KV cache does not push out of memory what is about to be loaded."""
    plain, _ = texts_of(harness(None, n_seqs=8), 4, 3)
    size = 8 * len(prompt(0)) + 8 * 60  # the fake keeps 8 bytes a token; four turns add fewer than 60 tokens
    tiers = memory(size)
    texts, cached = texts_of(harness(tiers, n_seqs=2), 4, 3)
    assert texts == plain
    assert cached[3:] == [107 + 11 * turn for turn in range(3) for _ in range(3)]
    assert tiers.counters().memory_bytes <= size
    check_snapshots(tiers)


def test_loaded_state_leaves_memory_first():
    """A conversation three times as long, now in the KV cache, gives its memory to the one it displaced."""
    tiers = memory(8 * 420)
    found = harness(tiers, n_seqs=1)
    found.run(ask(prompt(0, 300)))
    found.run(ask(prompt(1, 150)))
    (long,) = found.run(ask([*prompt(0, 300), 7]))
    assert long.started.n_cached == 300
    (short,) = found.run(ask([*prompt(1, 150), 7]))
    assert short.started.n_cached == 150


def test_unkeepable_state_is_not_copied():
    backend, tiers = Watched(n_seqs=1, n_cells=4096), memory(8 * 500)
    found = Harness(backend, snapshots=tiers, n_slots=1, limits=LIMITS)
    for tokens in (prompt(0, 450), prompt(1), prompt(2)):  # the second is worth less than the first
        found.run(ask(tokens))
    assert backend.n_saved == 1
    assert tiers.counters().memory_snapshots == 1


def test_long_prompt_spares_recent_leavers():
    tiers = memory(8 * 120)
    found = harness(tiers, n_seqs=6)
    for i in range(3):
        found.run(ask(prompt(i)))
    costs = found.engine.residence.move_costs
    costs.moved(8 * 107, 107, 1e-6)
    for i in range(500):
        costs.stepped(0.01 * (i % 2), i % 2)  # 10 ms a cell
    found.run(ask(prompt(9, 700)))
    cached = [found.run(ask([*prompt(i), 3]))[0].started.n_cached for i in range(3)]
    assert cached == [100] * 3
