"""Files under names that clients choose: confined to one directory, never believed, never half-written."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.cache.files import STALE_NS, DiskTier
from server.cache.named import FullError, NamedFiles, fault
from server.cache.record import RECORD_VERSION, CorruptError, ForeignError
from tests.server.cache.folder import flip

TOKENS = [5, 6, 70_000, 8]
PAYLOAD = bytes(range(256)) * 4
ENOUGH = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "slots"


def files(path: Path, *, budget: int = ENOUGH, model: str = "toy") -> NamedFiles:
    return NamedFiles(path, budget_bytes=budget, fingerprint=model)


def names_in(path: Path) -> list[str]:
    return sorted(one.name for one in path.iterdir())


def test_other_lead_reads_named_file(path: Path):
    n_written = files(path).write("one chat", TOKENS, PAYLOAD)
    stored = files(path).read("one chat")
    assert (stored.tokens, stored.data, stored.n_read) == (TOKENS, PAYLOAD, n_written)
    assert names_in(path) == ["one chat"]
    assert (path / "one chat").stat().st_size == n_written
    assert stat.S_IMODE((path / "one chat").stat().st_mode) == 0o600
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_same_name_replaces_the_file(path: Path):
    here = files(path)
    here.write("a", TOKENS, PAYLOAD)
    here.write("a", [1], b"new")
    assert (here.read("a").tokens, here.read("a").data) == ([1], b"new")
    assert names_in(path) == ["a"]


def test_a_missing_file_is_missing(path: Path):
    with pytest.raises(FileNotFoundError):
        files(path).read("a")
    files(path).write("b", TOKENS, PAYLOAD)
    with pytest.raises(FileNotFoundError):
        files(path).read("a")


REFUSED = [
    "",
    ".",
    "..",
    ".hidden",
    "a/b",
    "/a",
    "../a",
    "a\\b",
    "a..b",
    "C:a",
    "a\0",
    "a\nb",
    "x" * 129,
    "é" * 65,
]


@pytest.mark.parametrize("name", REFUSED)
def test_name_is_a_plain_file_name(path: Path, name: str):
    assert fault(name)
    for use in (lambda: files(path).write(name, TOKENS, PAYLOAD), lambda: files(path).read(name)):
        with pytest.raises(ValueError, match=r"."):
            use()
    assert not path.exists()


@pytest.mark.parametrize(
    "name", ["a", "a.b", "chat of Tuesday.bin", "x" * 128, "é" * 64, "-rf", "~", "0" * 64 + ".duo"]
)
def test_other_names_are_as_good_as_any(path: Path, name: str):
    files(path).write(name, TOKENS, PAYLOAD)
    assert files(path).read(name).tokens == TOKENS
    assert names_in(path) == [name]


@given(name=st.text(max_size=140))
def test_no_name_leads_out_of_the_directory(name: str):
    directory = Path("/somewhere/slots")
    if fault(name) is None:
        assert Path(os.path.normpath(directory / name)).parent == directory


def test_another_model_s_file_is_refused(path: Path):
    files(path, model="another").write("a", TOKENS, PAYLOAD)
    with pytest.raises(ForeignError, match="another model"):
        files(path).read("a")


def test_another_version_s_file_is_refused(path: Path):
    files(path).write("a", TOKENS, PAYLOAD)
    content = (path / "a").read_bytes()
    (path / "a").write_bytes(content[:8] + (RECORD_VERSION + 1).to_bytes(4, "little") + content[12:])
    with pytest.raises(ForeignError, match="version"):
        files(path).read("a")


def test_salted_file_hides_its_salt(path: Path):
    files(path).write("a", TOKENS, PAYLOAD, salt="secret")
    assert files(path).read("a", salt="secret").tokens == TOKENS
    for salt in ("", "other"):
        with pytest.raises(FileNotFoundError):
            files(path).read("a", salt=salt)
    (name,) = names_in(path)
    assert "secret" not in name
    assert b"secret" not in (path / name).read_bytes()


def test_each_salt_has_names_of_its_own(path: Path):
    here = files(path)
    written = {"": [1], "mine": [2], "yours": [3]}
    for salt, tokens in written.items():
        here.write("a", tokens, PAYLOAD, salt=salt)
    assert {salt: here.read("a", salt=salt).tokens for salt in written} == written
    here.write("a", [4], PAYLOAD, salt="mine")
    assert here.read("a", salt="yours").tokens == [3]
    assert len(names_in(path)) == 3
    assert [name for name in names_in(path) if not fault(name)] == ["a"], "nobody can name another's file"


def test_renamed_salted_file_is_refused(path: Path):
    here = files(path)
    here.write("a", TOKENS, PAYLOAD, salt="secret")
    (path / names_in(path)[0]).rename(path / "a")
    with pytest.raises(ForeignError, match="salt"):
        here.read("a")


def test_foreign_salted_file_is_replaced(path: Path):
    files(path, model="another").write("a", TOKENS, PAYLOAD, salt="mine")
    with pytest.raises(ForeignError, match="another model"):
        files(path).read("a", salt="mine")
    files(path).write("a", TOKENS, PAYLOAD, salt="mine")
    assert len(names_in(path)) == 1


def test_the_longest_name_fits_beside_a_salt(path: Path):
    files(path).write("x" * 128, TOKENS, PAYLOAD, salt="mine")
    assert files(path).read("x" * 128, salt="mine").tokens == TOKENS


def test_the_budget_is_one_for_all_salts(path: Path):
    size = files(path).write("a", TOKENS, PAYLOAD, salt="mine")
    here = files(path, budget=2 * size)
    here.write("a", TOKENS, PAYLOAD, salt="yours")
    with pytest.raises(FullError):
        here.write("a", TOKENS, PAYLOAD)


@pytest.mark.parametrize("at", [9, 40, 100, -700, -1])
def test_damage_is_found(path: Path, at: int):
    files(path).write("a", TOKENS, PAYLOAD)
    flip(path / "a", at)
    with pytest.raises((CorruptError, ForeignError)):
        files(path).read("a")


@pytest.mark.parametrize("size", [0, 4, 50, 200, -1])
def test_a_truncated_file_is_found(path: Path, size: int):
    files(path).write("a", TOKENS, PAYLOAD)
    content = (path / "a").read_bytes()
    (path / "a").write_bytes(content[:size])
    with pytest.raises((CorruptError, ForeignError)):
        files(path).read("a")


def test_links_pipes_and_directories_are_not_read(path: Path):
    here = files(path)
    here.write("a", TOKENS, PAYLOAD)
    (path / "a").rename(path.parent / "outside")
    (path / "link").symlink_to(path.parent / "outside")
    os.mkfifo(path / "pipe")
    (path / "directory").mkdir()
    for name in ("link", "pipe", "directory"):
        with pytest.raises(ForeignError, match="not a regular file"):
            here.read(name)


def test_a_link_is_replaced_not_followed(path: Path):
    here = files(path)
    here.write("a", TOKENS, PAYLOAD)
    outside = path.parent / "outside"
    outside.write_bytes(b"untouched")
    (path / "link").symlink_to(outside)
    here.write("link", TOKENS, PAYLOAD)
    assert outside.read_bytes() == b"untouched"
    assert here.read("link").tokens == TOKENS


def test_full_budget_refuses_new_files(path: Path):
    size = files(path).write("a", TOKENS, PAYLOAD)
    here = files(path, budget=2 * size)
    here.write("b", TOKENS, PAYLOAD)
    with pytest.raises(FullError):
        here.write("c", TOKENS, PAYLOAD)
    assert names_in(path) == ["a", "b"]
    here.write("b", [*TOKENS[:3], 9], PAYLOAD)  # in place of as much
    assert here.read("b").tokens == [5, 6, 70_000, 9]
    with pytest.raises(FullError):
        here.write("b", TOKENS, PAYLOAD + b"!")
    assert here.read("b").tokens == [5, 6, 70_000, 9]


def test_failed_write_leaves_nothing(path: Path):
    here = files(path)
    here.write("other", TOKENS, PAYLOAD)
    (path / "a").mkdir()
    with pytest.raises(OSError, match="a"):
        here.write("a", TOKENS, PAYLOAD)
    assert names_in(path) == ["a", "other"]


def test_half_written_file_ages_out(path: Path):
    here = files(path)
    here.write("a", TOKENS, PAYLOAD)
    old, young = path / ".0123456789abcdef.tmp", path / ".fedcba9876543210.tmp"
    for aside in (old, young):
        aside.write_bytes(b"half")
    os.utime(old, ns=(0, old.stat().st_mtime_ns - 2 * STALE_NS))
    here.write("b", TOKENS, PAYLOAD)
    assert names_in(path) == [young.name, "a", "b"]


def test_the_cache_around_does_not_see_them(path: Path):
    size = files(path).write("0" * 64 + ".duo", TOKENS, PAYLOAD)
    tier = DiskTier(path.parent, budget_bytes=size // 2, fingerprint="toy")
    assert tier.scan(()).found == ()
    assert tier.trim() == []
    assert files(path).read("0" * 64 + ".duo").tokens == TOKENS
