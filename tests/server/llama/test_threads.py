"""How many threads compute, by what others take of the cores."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from server.llama import threads
from server.llama.threads import PERIOD_S, STARTED_S, Start, Threads, n_threads

CORES = 0, 1
KINDS: Sequence[str] = "user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"
TICKS = os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(
    ("now", "others", "then"),
    [
        (2, 0.0, 2),
        (2, 0.2, 2),  # one that would take 0.3 of a core
        (2, 0.29, 2),  # 0.5: one thread makes 0.8 to 1.1 of the steps of two
        (2, 0.44, 1),  # 0.8: 1.0 to 1.4
        (2, 0.67, 1),  # one that takes what it gets
        (2, 1.4, 1),  # four of these
        (1, 1.6, 1),
        (1, 1.0, 1),
        (1, 0.7, 1),
        (1, 0.5, 2),
        (1, 0.2, 2),
        (1, 0.0, 2),
    ],
)
def test_one_thread_wins_where_quicker(now: int, others: float, then: int):
    assert n_threads(now, 2, 2 - others) == then


def test_threads_match_free_cores():
    assert n_threads(16, 16, 16 - 5.3) == 11
    assert n_threads(11, 16, 16 - 8.0) == 8
    assert n_threads(8, 16, 16 - 8.0) == 8
    assert n_threads(8, 16, 16.0) == 16
    assert n_threads(8, 8, 16 - 7.0) == 8, "on other cores"


class Library:
    """llama.cpp's thread calls.

    n, n_batch: threads of a new context. set: what they were set to.
    """

    n, n_batch = 2, 2

    def __init__(self) -> None:
        self.set = list[tuple[int, int]]()

    def llama_n_threads(self, _handle: object) -> int:
        return self.n

    def llama_n_threads_batch(self, _handle: object) -> int:
        return self.n_batch

    def llama_set_n_threads(self, _handle: object, n: int, n_batch: int) -> None:
        self.set.append((n, n_batch))


class Machine:
    """Two cores.

    used: seconds of the first by kind. own_s: of both, by this process.
    """

    def __init__(self, stat: Path) -> None:
        self.stat, self.now, self.own_s = stat, 100.0, 0.0
        self.used = dict.fromkeys(KINDS, 0.0)
        self.library = Library()
        self.write()

    def write(self) -> None:
        ticks = [round(seconds * TICKS) for seconds in self.used.values()]
        cores = "".join(f"cpu{core} {' '.join(map(str, ticks))} 0 0\n" for core in (0, 7))
        own = f"cpu1 {round(self.own_s * TICKS)} 0 0 0 0 0 0 0 0 0\n"
        self.stat.write_text(f"cpu  9999 0 0 0 0 0 0 0 0 0\n{cores}{own}intr 12 0 0\nctxt 5\n")

    def lets_run(self, ours: Threads, n_periods: int, **used: float) -> None:
        """Let time pass; threads look at the end of each period."""
        for _ in range(n_periods):
            self.passes(PERIOD_S, **used)
            ours.choose_number()

    def passes(self, seconds: float, **used: float) -> None:
        """Let others use this share of the first core, by kind, and this process all of the second."""
        self.now += seconds
        self.own_s += seconds
        for kind, share in used.items():
            self.used[kind] += share * seconds
        self.write()


def own_priority(nice: int) -> Callable[[int, int], int]:
    return lambda _which, _who: nice


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(tmp_path / "stat")
    clocks = SimpleNamespace(monotonic=lambda: machine.now, process_time=lambda: machine.own_s)
    monkeypatch.setattr(threads, "C", machine.library)
    monkeypatch.setattr(threads, "time", clocks)
    monkeypatch.setattr(threads, "STAT", machine.stat)
    monkeypatch.setattr(threads, "own_cores", lambda: CORES)
    monkeypatch.setattr(threads, "STARTED", Start(machine.now, 0.0))
    monkeypatch.setattr(os, "getpriority", own_priority(0))
    return machine


def test_threads_yield_and_return(machine: Machine):
    ours = Threads(None)
    machine.lets_run(ours, 2, user=0.5, system=0.2)
    assert machine.library.set == [(1, 1)]
    machine.lets_run(ours, 3, user=1.0)
    assert machine.library.set == [(1, 1)]
    machine.lets_run(ours, 1, idle=1.0)
    assert machine.library.set == [(1, 1), (2, 2)]


@pytest.mark.parametrize(("seconds", "n"), [(STARTED_S / 2, 1), (2 * STARTED_S, 2)])
def test_start_beside_others_begins_with_fewer_threads(machine: Machine, seconds: float, n: int):
    machine.passes(seconds, user=1.0)
    ours = Threads(None)
    ours.choose_number()
    assert machine.library.set == [(1, 1)] * (n == 1)
    machine.lets_run(ours, 2, idle=1.0)
    assert ours.n == 2


def test_momentary_load_costs_no_thread(machine: Machine):
    ours = Threads(None)
    for _ in range(3):
        machine.lets_run(ours, 1, user=1.0)
        machine.lets_run(ours, 1, user=0.1)
    assert not machine.library.set


@pytest.mark.parametrize(("seconds", "n"), [(0.5, 2), (1.0, 1)])
def test_second_long_load_costs_thread(machine: Machine, seconds: float, n: int):
    """Others compute for this time; decodes take a twentieth of a second."""
    ours = Threads(None)
    numbers = list[int]()
    for i in range(60):
        machine.passes(0.05, user=1.0 if i < round(20 * seconds) else 0.0)
        ours.choose_number()
        numbers.append(ours.n)
    assert min(numbers) == n
    assert numbers[-1] == 2


def test_one_look_lasts_a_while(machine: Machine):
    ours = Threads(None)
    machine.lets_run(ours, 2, user=1.0)
    machine.passes(PERIOD_S / 2, idle=1.0)
    ours.choose_number()
    assert machine.library.set == [(1, 1)]


def test_all_of_a_pause_counts(machine: Machine):
    ours = Threads(None)
    machine.lets_run(ours, 1, user=1.0)
    machine.passes(100.0, user=0.5)
    ours.choose_number()
    assert machine.library.set == [(1, 1)]


@pytest.mark.parametrize("kind", KINDS)
def test_yielding_programs_take_no_core(machine: Machine, kind: str):
    ours = Threads(None)
    machine.lets_run(ours, 2, **{kind: 1.0})
    assert ours.n == (2 if kind in ("idle", "iowait", "nice") else 1)


def test_nice_process_yields_to_peers(machine: Machine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "getpriority", own_priority(10))
    ours = Threads(None)
    machine.lets_run(ours, 2, nice=1.0)
    assert ours.n == 1


def test_stable_decodes_use_all_threads(machine: Machine):
    ours = Threads(None)
    machine.passes(PERIOD_S, user=1.0)
    ours.choose_number(all_of_them=True)
    machine.passes(PERIOD_S, user=1.0)
    ours.choose_number(all_of_them=True)
    assert not machine.library.set
    ours.choose_number()
    ours.choose_number()
    ours.choose_number(all_of_them=True)
    assert machine.library.set == [(1, 1), (2, 2)]


def test_single_rows_keep_fewer_threads_than_prompts(machine: Machine):
    machine.library.n_batch = 4
    machine.lets_run(Threads(None), 2, user=1.0)
    assert machine.library.set == [(2, 3)]


def test_idle_machine_allows_extra_threads(machine: Machine):
    machine.library.n = 4
    ours = Threads(None)
    machine.lets_run(ours, 2)
    assert ours.n == 4


@pytest.mark.parametrize("fixed", [True, False])
def test_unpinnable_threads_mean_unknown(machine: Machine, fixed: bool):
    if not fixed:
        machine.stat.unlink()
    ours = Threads(None, fixed=fixed)
    machine.lets_run(ours, 2, user=1.0)
    assert not machine.library.set


@pytest.mark.parametrize("text", ["", "\n", "cpu0 1 2\n", "cpu0 a b c d e f g h\n", "cpu 1 2 3 4 5 6 7 8\n"])
def test_unreadable_load_tells_nothing(machine: Machine, text: str):
    machine.stat.write_text(text)
    assert threads.used_by_others(CORES) is None


def test_unknown_load_uses_all_threads(machine: Machine):
    ours = Threads(None)
    machine.lets_run(ours, 2, user=1.0)
    machine.stat.unlink()
    machine.now += PERIOD_S
    ours.choose_number()
    assert machine.library.set == [(1, 1), (2, 2)]


def test_system_load_is_read():
    """The numbers are this machine's, unless it tells nothing."""
    if not threads.STAT.exists():
        pytest.skip("the system does not tell")
    assert threads.used_by_others(threads.own_cores()) is not None
