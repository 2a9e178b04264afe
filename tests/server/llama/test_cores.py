"""--cpu-mask and --cpu-range."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from server.errors import StartupError
from server.flags import read
from server.llama.cores import of_mask, of_range
from server.settings import UpSettings

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")

SHOW = """
import os, sys, threading
from server.flags import n_cores, read
from server.settings import LeadSettings
read(LeadSettings, sys.argv[1:]).pinned()
threading.Thread(target=lambda: print(n_cores(), *os.sched_getaffinity(0))).start()
"""


@pytest.mark.parametrize(
    ("text", "found"), [("", []), ("1", [0]), ("0x5", [0, 2]), ("F0", [4, 5, 6, 7]), ("100000000", [32])]
)
def test_mask_has_bit_per_core(text: str, found: list[int]):
    assert sorted(of_mask(text)) == found


def test_a_range_may_leave_out_an_end():
    last = (os.cpu_count() or 1) - 1
    assert sorted(of_range("2-4")) == [2, 3, 4]
    assert sorted(of_range("-1")) == [0, 1]
    assert sorted(of_range("0-")) == list(range(last + 1))
    assert of_range("") == frozenset()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--cpu-mask", "xyz"], "--cpu-mask: xyz is no hexadecimal number"),
        (["--cpu-mask=-1"], "--cpu-mask: -1 names cores beyond"),
        (["--cpu-range", "3"], "--cpu-range: 3 is not FIRST-LAST"),
        (["-Cr", "3-1"], "--cpu-range: 3-1 names no core"),
        (["-Cr", "a-b"], "--cpu-range: a-b is not FIRST-LAST"),
        (["-Cd", "!"], "--cpu-mask-draft: ! is no hexadecimal number"),
    ],
)
def test_empty_core_list_is_reported(flags: list[str], said: str):
    with pytest.raises(StartupError, match=said):
        read(UpSettings, flags)


def test_later_threads_inherit_cores():
    core = min(os.sched_getaffinity(0))
    for flags in (["--cpu-range", f"{core}-{core}"], ["-C", f"{1 << core:x}"]):
        shown = subprocess.run(
            [sys.executable, "-c", SHOW, *flags], capture_output=True, text=True, check=True
        )
        assert shown.stdout.split() == ["1", str(core)]


def test_cores_that_are_not_there_are_told():
    with pytest.raises(StartupError, match="may not run on core 8000"):
        read(UpSettings, ["--cpu-range", "8000-8001"]).pinned()
