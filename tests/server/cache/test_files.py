"""Snapshots as files: found by every lead of the same model, within one budget, after any crash."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.cache.files import RESCAN_NS, STALE_NS, Scan
from server.cache.record import HEAD, digest, name_of, record, salt_digest
from tests.server.cache.folder import BUDGET, PAYLOAD, TOKENS, Folder, flip


@given(
    tokens=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=40).map(tuple),
    payload=st.binary(max_size=300),
    salt=st.text(max_size=8),
)
def test_other_lead_finds_written_file(
    tmp_path_factory: pytest.TempPathFactory, tokens: tuple[int, ...], payload: bytes, salt: str
):
    path = tmp_path_factory.mktemp("cache")
    one = Folder(path).write(tokens, payload, salt)
    other = Folder(path)
    (head,) = other.scan().found
    assert (head.name, head.tokens, head.n_bytes) == (one.name, tokens, len(payload))
    assert head.salt == salt_digest(salt, other.tier.fingerprint)
    assert other.tier.read(head.name) == payload
    assert other.n_bytes() == one.size


def test_names_depend_on_model_salt_tokens():
    names = {
        name_of(digest(model), salt_digest(salt, digest(model)), tokens)
        for model in ("a", "b")
        for salt in ("", "key")
        for tokens in ([1, 2], [1, 2, 3], [1, 3])
        for _ in range(2)
    }
    assert len(names) == 12


def test_others_read_no_files_or_salts(folder: Folder):
    one = folder.write(salt="sk-secret")
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.file(one).stat().st_mode) == 0o600
    content = folder.file(one).read_bytes() + folder.file(one).name.encode()
    assert b"sk-secret" not in content
    assert digest("sk-secret") not in content, "a plain digest is as good as the salt, if the salt is weak"


def test_misnamed_file_is_not_taken(folder: Folder):
    one = folder.write()
    folder.file(one).rename(folder.path / ("0" * 64 + ".duo"))
    assert folder.scan().found == ()
    assert folder.tier.read("0" * 64) is None
    assert folder.files() == ["0" * 64 + ".duo"]


def test_foreign_model_files_are_kept(folder: Folder, warned: Callable[[], int]):
    other = Folder(folder.path, model="another")
    names = [other.write((1, n)).name for n in range(5)]
    assert folder.scan().found == ()
    assert (warned(), folder.tier.n_skipped) == (1, 5)
    assert [folder.tier.read(name) for name in names] == [None] * 5
    assert len(other.scan().found) == 5


def test_oldest_foreign_files_go_first(folder: Folder):
    other = Folder(folder.path, model="another")
    foreign = other.write((1,))
    size = foreign.size
    mine = folder.write((1,))
    small = Folder(folder.path, budget=2 * size)
    assert len(small.files()) == 2
    newest = small.write((2,))
    assert set(small.files()) == {small.file(mine).name, small.file(newest).name}
    small.tier.touch(mine.name)
    last = small.write((3,))
    assert set(small.files()) == {small.file(mine).name, small.file(last).name}
    assert small.tier.n_evicted == 2


def test_reading_counts_as_use(folder: Folder):
    one, two = folder.write((1,)), folder.write((2,))
    assert folder.tier.read(one.name) == PAYLOAD
    small = Folder(folder.path, budget=one.size)
    assert small.files() == [small.file(one).name]
    assert small.tier.read(two.name) is None


@given(
    sizes=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 400), st.booleans()), max_size=30),
    budget=st.integers(0, 1500),
)
def test_two_leads_keep_one_budget(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[tuple[int, int, bool]], budget: int
):
    path = tmp_path_factory.mktemp("cache")
    leads = [Folder(path, budget=budget), Folder(path, budget=budget)]
    for token, size, which in sizes:
        lead = leads[which]
        one = record(lead.tier.fingerprint, salt_digest("", lead.tier.fingerprint), (token,), bytes(size))
        ok, _ = lead.tier.write(one, lambda: True)
        assert ok == (one.size <= budget), "whatever fits by itself is written"
        assert lead.file(one).exists() or not ok
        lead.tier.trim()
        assert lead.n_bytes() == lead.tier.n_bytes <= budget


def test_room_is_made_before_writing(folder: Folder):
    size = folder.write((1,)).size
    one = Folder(folder.path, budget=3 * size)
    two = Folder(folder.path, budget=3 * size)
    seen: list[int] = []

    def meanwhile() -> bool:
        if not seen:
            seen.append(one.n_bytes())
            for n in range(10, 14):
                two.write((n,))
                seen.append(two.n_bytes())
        return True

    what = record(one.tier.fingerprint, salt_digest("", one.tier.fingerprint), (2,), PAYLOAD)
    assert one.tier.write(what, meanwhile)[0]
    assert max(*seen, one.n_bytes()) <= 3 * size
    assert one.file(what).exists()


def test_scan_reports_additions_and_removals(folder: Folder):
    other = Folder(folder.path)
    one = other.write((1,))
    assert [head.name for head in folder.scan().found] == [one.name]
    assert folder.scan(one.name) == Scan()
    two = other.write((2,))
    other.tier.remove([one.name])
    scan = folder.scan(one.name)
    assert ([head.name for head in scan.found], scan.gone) == ([two.name], (one.name,))


def test_unchanged_directory_is_not_listed(folder: Folder, monkeypatch: pytest.MonkeyPatch):
    listed: list[Path] = []
    scandir = os.scandir

    def counted(path: Path) -> object:
        listed.append(path)
        return scandir(path)

    one = folder.write()
    monkeypatch.setattr(os, "scandir", counted)
    folder.clock.ahead += 10 * RESCAN_NS
    assert len(folder.tier.scan(()).found) == 1
    folder.write((2,))
    listed.clear()
    assert folder.tier.scan(()) == Scan(), "within the same second"
    assert listed == []
    assert len(folder.scan().found) == 1
    assert len(listed) == 1
    for _ in range(5):
        assert folder.scan(one.name) == Scan()
    assert len(listed) == 1


def test_change_within_coarse_time_counts(folder: Folder):
    """Two changes may leave the directory with one time, so a young time is not relied on."""
    folder.write((1,))
    assert len(folder.scan().found) == 1
    stamp = folder.path.stat().st_mtime_ns
    folder.write((2,))
    os.utime(folder.path, ns=(stamp, stamp))
    assert len(folder.scan().found) == 1


def test_replaced_damaged_file_is_found(folder: Folder):
    one = folder.write()
    flip(folder.file(one), HEAD.size)
    keep = folder.path / "keeps the inode"
    os.link(folder.file(one), keep)
    assert folder.scan().found == ()
    folder.write()
    assert len(folder.scan().found) == 1


def test_reconsidering_finds_again_all_but_the_bad(folder: Folder):
    names = [folder.write((n,)).name for n in range(3)]
    assert len(folder.scan().found) == 3
    folder.tier.reconsider(names[:1], bad=names[1])
    assert [head.name for head in folder.scan().found] == names[2:]


def test_a_directory_that_vanishes_is_made_again(folder: Folder):
    one = folder.write()
    folder.scan()
    folder.file(one).unlink()
    folder.path.rmdir()
    assert folder.scan(one.name).gone == (one.name,)
    assert folder.tier.trim() == []
    folder.write()
    assert len(folder.scan().found) == 1


def test_failed_write_leaves_nothing(
    folder: Folder, warned: Callable[[], int], monkeypatch: pytest.MonkeyPatch
):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    one = record(folder.tier.fingerprint, salt_digest("", folder.tier.fingerprint), TOKENS, PAYLOAD)
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        assert [folder.tier.write(one, lambda: True)[0] for _ in range(3)] == [False] * 3
    assert (warned(), folder.files()) == (1, [])
    assert folder.tier.write(one, lambda: True)[0]


def test_writing_stops_when_told_and_leaves_nothing(folder: Folder):
    one = record(folder.tier.fingerprint, salt_digest("", folder.tier.fingerprint), TOKENS, PAYLOAD)
    assert not folder.tier.write(one, lambda: False)[0]
    assert folder.files() == []


def test_oversized_file_evicts_nobody(folder: Folder):
    small = Folder(folder.path, budget=folder.write().size)
    large = record(small.tier.fingerprint, salt_digest("", small.tier.fingerprint), (1,), bytes(BUDGET))
    assert small.tier.write(large, lambda: True) == (False, [])
    assert len(small.files()) == 1


def test_files_with_other_names_are_not_touched(folder: Folder):
    for name in ("slot-1.bin", "notes.duo", "0" * 64 + ".duo.bak", "x" * 64 + ".duo"):
        (folder.path / name).write_bytes(bytes(100))
    before = folder.files()
    assert Folder(folder.path, budget=0).scan().found == ()
    assert folder.files() == before


KILLED = """
import os, signal, sys
from pathlib import Path
from server.cache.files import DiskTier
from server.cache.record import record, salt_digest
os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
tier = DiskTier(Path(sys.argv[1]), budget_bytes=1 << 20, fingerprint="toy")
tier.write(record(tier.fingerprint, salt_digest("", tier.fingerprint), [1, 2], bytes(1000)), lambda: True)
"""


def test_stale_partial_file_is_removed(folder: Folder):
    child = subprocess.run([sys.executable, "-c", KILLED, str(folder.path)], timeout=60, check=False)
    assert child.returncode == -signal.SIGKILL
    (left,) = folder.files()
    assert left.endswith(".tmp")
    assert folder.scan().found == ()
    folder.write()
    assert left in folder.files(), "somebody may be writing it"
    folder.clock.ahead += STALE_NS + RESCAN_NS
    folder.write((2,))
    assert left not in folder.files()
    assert len(folder.scan().found) == 2


def test_open_directory_is_warned_of(tmp_path: Path, warned: Callable[[], int]):
    path = tmp_path / "open"
    path.mkdir()
    path.chmod(0o777)
    Folder(path)
    assert warned() == 1


def test_missing_directory_fails_loudly(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="file"):
        Folder(tmp_path / "file")
