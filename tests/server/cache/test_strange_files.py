"""What is not exactly right is skipped, told of once, and never an error."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.cache.record import HEAD, RECORD_VERSION, SUM
from tests.server.cache.folder import PAYLOAD, TOKENS, Folder, flip

BOUNDARIES = (
    1,
    8,
    HEAD.size - 1,
    HEAD.size,
    HEAD.size + 4 * len(TOKENS),
    HEAD.size + 4 * len(TOKENS) + SUM.size,
)


@pytest.mark.parametrize("size", [*BOUNDARIES, -SUM.size - 1, -SUM.size, -1])
def test_truncated_file_is_warned_once(folder: Folder, warned: Callable[[], int], size: int):
    one = folder.write()
    whole = folder.file(one).read_bytes()
    folder.file(one).write_bytes(whole[:size])
    assert folder.scan().found == ()
    assert folder.scan().found == ()
    assert (warned(), folder.tier.n_skipped) == (1, 1)
    assert bool(folder.files()) == (0 < size < 8), "what has our magic is removed"


HEAD_BYTES = list(range(8, HEAD.size)) + list(range(HEAD.size, HEAD.size + 4 * len(TOKENS) + SUM.size))


@pytest.mark.parametrize("at", HEAD_BYTES)
def test_scan_finds_damaged_head(folder: Folder, warned: Callable[[], int], at: int):
    one = folder.write()
    flip(folder.file(one), at)
    assert folder.scan().found == ()
    assert warned() == 1
    of_another_version = 8 <= at < 12
    assert bool(folder.files()) == of_another_version


@pytest.mark.parametrize("at", [-len(PAYLOAD) - SUM.size, -len(PAYLOAD) // 2, -SUM.size - 1, -SUM.size, -1])
def test_reading_finds_damaged_payload(folder: Folder, warned: Callable[[], int], at: int):
    one = folder.write()
    flip(folder.file(one), at)
    assert [head.name for head in folder.scan().found] == [one.name]
    assert folder.tier.read(one.name) is None
    assert (warned(), folder.files()) == (1, [])


@given(cut=st.integers(0, 2000), at=st.integers(0, 2000), value=st.integers(0, 255))
def test_no_damage_yields_another_payload(
    tmp_path_factory: pytest.TempPathFactory, cut: int, at: int, value: int
):
    folder = Folder(tmp_path_factory.mktemp("cache"))
    one = folder.write()
    whole = bytearray(folder.file(one).read_bytes()[: cut or None])
    whole[at % len(whole)] = value
    folder.file(one).write_bytes(whole)
    folder.scan()
    assert folder.tier.read(one.name) in (None, PAYLOAD)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def a_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def a_link_to_a_snapshot(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def of_another_version(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:8] + (RECORD_VERSION + 1).to_bytes(4, "little") + content[12:])


def something_else(path: Path) -> None:
    path.write_bytes(b"GGUF" * 1000)


STRANGE = [emptied, a_directory, a_pipe, a_loop, a_link_to_a_snapshot, of_another_version, something_else]


@pytest.mark.parametrize("become", STRANGE)
def test_foreign_file_is_left_alone(
    folder: Folder, warned: Callable[[], int], become: Callable[[Path], None]
):
    one = folder.write()
    become(folder.file(one))
    before = folder.files()
    assert folder.scan().found == ()
    assert folder.scan().found == ()
    assert warned() == 1
    assert folder.tier.read(one.name) is None
    assert folder.files() == before


@pytest.mark.skipif(os.geteuid() == 0, reason="everything is readable for root")
def test_an_unreadable_file_is_skipped(folder: Folder, warned: Callable[[], int]):
    folder.file(folder.write()).chmod(0)
    assert folder.scan().found == ()
    assert warned() == 1
