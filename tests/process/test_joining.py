"""Drafters that join a duo up which runs, by the command that it prints."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from drafters.drafter_settings import BUNDLED_MODEL
from tests.process.duo import Duo, endless_reply, joined, printed, run, until

pytestmark = [pytest.mark.model, pytest.mark.redis, pytest.mark.timeout(240)]

JOINS_S = (
    60.0  # a drafter loads its model, joins and has guesses accepted in a tenth of it on an idle machine
)
ONE_THREAD = ("--threads", "1", "--no-gate", "--no-lookup")  # no drafter rests


@contextmanager
def started(folder: Path, *flags: str) -> Generator[Duo]:
    with Duo(folder, "up", *ONE_THREAD, *flags) as duo:
        duo.wait_until_ready()
        yield duo


def accepted_of_second(duo: Duo) -> int:
    """Return the accepted guesses of the drafter that joined."""
    return sum(d["counts"].get("accepted", 0) for d in duo.drafters() if d["id"].startswith("second-"))


def read_until(chunks: Iterator[dict[str, Any]], condition: Callable[[], object], what: str) -> None:
    """Read the reply until a condition holds."""

    def holds() -> object:
        chunk = next(chunks)
        assert chunk["choices"][0]["finish_reason"] is None, chunk
        return condition()

    until(holds, JOINS_S, what)


def joins_and_is_killed(duo: Duo, folder: Path) -> None:
    """Have a drafter join during a reply and kill it; the reply goes on."""
    with closing(endless_reply(duo)) as chunks, joined(printed(duo), folder) as second:
        read_until(chunks, lambda: accepted_of_second(duo), "no guess of the drafter was accepted")
        second.kill()
        read_until(chunks, lambda: "second" not in str(duo.drafters()), "the lead did not miss it")
        assert len([next(chunks) for _ in range(20)]) == 20, "the reply went on"


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(("--drafters", "0"), id="nobody drafts yet"),
        pytest.param(("--draft-mode", "sync"), id="beside the draft model in the lead"),
    ],
)
def test_drafter_joins_and_dies_midstream(flags: tuple[str, ...], tmp_path: Path):
    with started(tmp_path, *flags) as duo:
        joins_and_is_killed(duo, tmp_path)


def test_remote_drafter_needs_the_password(tmp_path: Path):
    with started(tmp_path, "--drafters", "0", "--redis-listen", "127.0.0.2") as duo:
        right = printed(duo)
        [password] = re.findall(r"redis://:(.*)@127\.0\.0\.2:", right[2])
        for other in ("", ":wrong@", f"wrong:{password}@"):
            url = right[2].replace(f":{password}@", other)
            result = run("draft", "--redis", url)
            assert result.returncode == 1
            assert "wants a user or password" in result.stderr
            assert result.stderr.count("\n") == 1
            assert password not in result.stderr
        assert duo.drafters() == []
        assert duo.log.read_text().count(password) == 1, "it is told once"
        for pid in duo.descendants() | {duo.process.pid}:
            with suppress(OSError):
                assert password not in Path(f"/proc/{pid}/cmdline").read_text()
        [secret] = tmp_path.glob("duo-redis-*")
        assert os.stat(secret).st_mode & 0o077 == 0
        joins_and_is_killed(duo, tmp_path)


def test_another_server_drafts(tmp_path: Path):
    """A second duo serves the draft model."""
    draft = ("--model", str(BUNDLED_MODEL), "--threads", "1", "--draft-max", "0")
    (tmp_path / "engine").mkdir()
    with Duo(tmp_path / "engine", "serve", *draft) as engine, started(tmp_path, "--drafters", "0") as duo:
        engine.wait_until_ready()
        command = [*printed(duo), "--kind", "engine", "--url", engine.url, "--vocab-from", str(BUNDLED_MODEL)]
        with closing(endless_reply(duo)) as chunks, joined(command, tmp_path):
            read_until(chunks, lambda: accepted_of_second(duo), "no guess of the engine was accepted")
            [second] = [one for one in duo.drafters() if one["id"].startswith("second-")]
            assert (second["kind"], second["model"]) == ("engine", f"llama-server at {engine.url}")
            engine.process.kill()
            assert len([next(chunks) for _ in range(20)]) == 20, "the reply went on"
