"""Giving back the memory in which a mapped file lies."""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path

import pytest

from server.llama import mapped_files
from server.llama.mapped_files import own_memory, release_mapped, return_freed

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is mapped")
N_BYTES = 1 << 22


def resident(path: Path) -> int:
    """Return KiB of this file that lie in this process's memory."""
    here, total = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line.split()[0].count("-") and ":" in line.split()[0] + line.split()[3]:
            here = line.endswith(str(path))
        elif here and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total


def test_released_file_is_reread(tmp_path: Path):
    path = tmp_path / "model.gguf"
    path.write_bytes(bytes(range(256)) * (N_BYTES // 256))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert mapped[::4096].count(b"\0") == N_BYTES // 4096
        assert resident(path) == N_BYTES // 1024
        assert release_mapped([path]) == N_BYTES
        assert resident(path) == 0
        assert mapped[N_BYTES - 1] == 255


def test_own_memory_grows_with_what_is_written():
    before = own_memory()
    with mmap.mmap(-1, N_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as fresh:  # no page used before
        fresh[::4096] = b"x" * (N_BYTES // 4096)
        assert own_memory() - before >= N_BYTES // 2


def test_freed_memory_goes_back():
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "malloc_trim"):
        pytest.skip("only GNU's C library keeps what was freed")
    libc.malloc.restype = ctypes.c_void_p
    pieces = [libc.malloc(1 << 16) for _ in range(4 * N_BYTES >> 16)]
    for piece in pieces:
        ctypes.memset(piece, 1, 1 << 16)
    for piece in pieces[:-1]:  # the last one keeps the others from going back by themselves
        libc.free(ctypes.c_void_p(piece))
    before = own_memory()
    return_freed()
    assert before - own_memory() >= 2 * N_BYTES
    libc.free(ctypes.c_void_p(pieces[-1]))


def test_other_systems_release_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mapped_files, "MAPS", tmp_path / "absent")
    monkeypatch.setattr(mapped_files, "STATUS", tmp_path / "absent")
    assert (release_mapped([tmp_path]), own_memory()) == (0, 0)
