"""Choose the number of threads of a decode on the CPU: fewer while other programs use the cores.

llama.cpp's threads wait for each other many times in a step. If another program uses the core of one thread,
all others wait for that thread. With GCC's OpenMP the waiting threads keep their cores busy. On two cores,
beside one program that always computes, one thread makes 1.6 to 2 times as many steps as two threads
(docs/serving.md, section J of benchmarks/RESULTS.md).

Only Linux reports what other programs use: elsewhere the number is fixed. The number changes no bit of the
logits (tests/model/test_threads.py), with one exception: for a single row with flash attention, with 512 or
more cells in use, llama.cpp divides the cells among the threads.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server.llama.library import C

logger = logging.getLogger("duo.llama")

# Seconds between two measurements of the cores that other programs use; one takes 61 us with two cores. Two
# in a row must agree, so that work of half a second, such as loading a page, costs no thread. Half: such work
# costs a thread; twice: a program that starts goes unnoticed for two seconds.
PERIOD_S = 0.5
# With all threads computing, compute with one fewer if other programs get at least this number of cores.
# Measured (two cores, one row, bundled and 400M BF16): one thread makes 0.8 to 1.1 times the steps of two
# where others get 0.29 cores, 1.0 to 1.4 times where they get 0.44. Half: one thread also where others get
# 0.2 cores, where it makes 0.7 to 0.85 times as many steps; twice: two threads even where others get 0.66.
TAKEN = 0.38
# With fewer threads computing, add one if other programs leave at least this number of further cores unused.
# Half: two threads also where others take 0.7 of a core, where one makes 1.0 to 1.4 times the steps of two;
# twice: one thread even where others take 0.2, where it makes 0.6 to 0.85 times the steps of two.
FREE = 0.45
# Age of this process, in seconds, up to which a new context counts the cores that others have used since the
# start. Without this, the first decodes beside 15 busy programs took 34 s. A sixth: beside them, a process is
# older when it makes its context; twice: programs that ended two minutes ago count.
STARTED_S = 60.0
STAT = Path("/proc/stat")


class Threads:
    """Threads of one llama.cpp context, and how many of them compute."""

    def __init__(self, handle: Any, *, fixed: bool = False) -> None:
        """Control the threads of the context `handle`. If `fixed`, all threads compute in every decode."""
        self._handle = handle
        self.most = int(C.llama_n_threads(handle)), int(C.llama_n_threads_batch(handle))
        self.n = max(self.most)
        self._cores = frozenset[int]() if fixed or self.n == 1 else own_cores()
        self._n_cores = max(self.n, len(self._cores))  # the user may have set more threads than cores
        self._used = used_by_others(self._cores)
        self._others = 0.0  # cores that other programs used in the latest period
        if self._used is not None:
            self._others = STARTED.others(self._used)
            self.n = n_threads(self.n, self.n, self._n_cores - self._others)
        self._due = time.monotonic() + PERIOD_S if self._used is not None else math.inf
        self._in_use = max(self.most)

    def choose_number(self, *, all_of_them: bool = False) -> None:
        """Set the number of computing threads before a decode.

        Args:
            all_of_them: True: use all threads, so that no bit of the logits depends on other programs.
        """
        now = time.monotonic()
        if now >= self._due:
            self._measure_cores(now)
        n = max(self.most) if all_of_them else self.n
        if n != self._in_use:
            self._in_use = n
            C.llama_set_n_threads(self._handle, *(min(n, most) for most in self.most))

    def _measure_cores(self, now: float) -> None:
        before, self._used = self._used, used_by_others(self._cores)
        if before is None or self._used is None:
            self._due, self.n = math.inf, max(self.most)
            return
        passed_s = now - (self._due - PERIOD_S)
        others = (self._used - before) / passed_s
        n = n_threads(self.n, max(self.most), self._n_cores - min(others, self._others))
        self._due, self._others = now + PERIOD_S, others
        if n != self.n:
            logger.debug("%d of %d threads compute beside other programs", n, max(self.most))
            self.n = n


@dataclass(frozen=True, slots=True)
class Start:
    """The core-seconds that other programs had used when this process started."""

    at: float  # time.monotonic() at the start
    used: float | None  # used_by_others() at the start

    def others(self, used: float) -> float:
        """Return the mean number of cores that other programs have used since this process started.

        Return 0 once the process is older than STARTED_S.

        Args:
            used: The present value of used_by_others().
        """
        passed_s = time.monotonic() - self.at
        known = self.used is not None and 0 < passed_s < STARTED_S
        return (used - self.used) / passed_s if known and self.used is not None else 0.0


def n_threads(now: int, most: int, left: float) -> int:
    """Return the number of threads to compute with.

    Args:
        now: Threads that have computed until now.
        most: Maximum number of threads.
        left: Mean number of cores that other programs have left unused lately.
    """
    fewer, more = math.floor(left + TAKEN), math.floor(left + 1.0 - FREE)
    return max(1, min(most, fewer if fewer < now else max(now, more)))


def own_cores() -> Collection[int]:
    """Return the numbers of the cores that this thread may use; empty if the system does not report them."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else frozenset()


def used_by_others(cores: Collection[int]) -> float | None:
    """Return the core-seconds of these cores that other processes have used since the machine started.

    Return None if the system does not report them. All threads of this process must run on these cores.
    """
    names = {f"cpu{core}" for core in cores}
    try:
        lines = map(str.split, STAT.read_text().splitlines() if names else [])
        busy_s = [_busy_s(ticks) for name, *ticks in lines if name in names]
    except (OSError, ValueError):
        return None
    return sum(busy_s) - time.process_time() if busy_s else None


def _busy_s(ticks: Sequence[str]) -> float:
    """Return the seconds in which a core was busy.

    Low-priority processes yield to this process, so they count only if it has a low priority too. Time taken
    by a hypervisor counts.

    Args:
        ticks: user, nice, system, idle, iowait, irq, softirq, steal (proc_stat(5)).
    """
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, ticks[:8])
    yielding = 0 if os.getpriority(os.PRIO_PROCESS, 0) <= 0 else nice
    return (user + yielding + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


STARTED = Start(time.monotonic(), used_by_others(own_cores()))
