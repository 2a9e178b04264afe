"""No text changes while the network between lead, Redis and two drafters lags, loses, is cut and heals."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from server.local.embedded import find_binary
from tests.process.duo import Duo, joined, until
from tests.process.hosts import Hosts, why_not

pytestmark = [pytest.mark.model, pytest.mark.redis, pytest.mark.timeout(240)]

SOON_S = 60.0
PORT, PASSWORD = 6379, "of-the-test"
DRAFTERS = ("near", "far")
ASKED: dict[str, Any] = {
    "content": "Explain what a list is.",
    "max_tokens": 120,
    "speculative": {"exactness": "width-stable"},  # every bit, so that a near-tie is no excuse
}


@pytest.fixture
def hosts() -> Generator[Hosts]:
    if missing := why_not():
        pytest.skip(missing)
    with Hosts("lead", "redis", *DRAFTERS) as all_of_them:
        yield all_of_them


@contextmanager
def redis_on(address: str, folder: Path) -> Generator[None]:
    options = {"bind": address, "port": PORT, "requirepass": PASSWORD, "save": "", "dir": folder}
    flags = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    with (folder / "redis.log").open("wb") as log:
        process = subprocess.Popen([find_binary(), *flags], stdout=log, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        process.kill()
        process.wait()


class Scene:
    """What runs on the hosts.

    The lead's host asks the lead.
    """

    def __init__(self, hosts: Hosts, folder: Path, ending: ExitStack) -> None:
        self.hosts, self._folder, self._ending = hosts, folder, ending
        address = hosts["redis"].address
        self.url = f"redis://:{PASSWORD}@{address}:{PORT}"
        self._begin("redis", lambda home: redis_on(address, home))
        flags = ("--threads", "1", "--no-gate", "--no-lookup", "--redis", self.url)
        self.duo: Duo = self._begin("lead", lambda home: Duo(home, "serve", *flags))
        self.ask(self.duo.wait_until_ready)

    def _begin(self, name: str, start: Callable[[Path], Any]) -> Any:
        home = self._folder / name
        home.mkdir()
        return self.hosts[name].run(lambda: self._ending.enter_context(start(home)))

    def join(self, name: str) -> None:
        command = ["draft", "--redis", self.url, "--threads", "1"]
        self._begin(name, lambda home: joined(command, home, name))

    def ask(self, work: Callable[[], Any]) -> Any:
        return self.hosts["lead"].run(work)

    def said(self) -> str:
        return str(self.ask(lambda: self.duo.ask(**ASKED))["choices"][0]["message"]["content"])

    def accepted(self) -> dict[str, int]:
        """Return accepted guesses by the names of the present drafters."""
        found = self.ask(self.duo.drafters)
        return {one["name"]: one["counts"].get("accepted", 0) for one in found}


def test_network_faults_change_no_text(hosts: Hosts, tmp_path: Path):
    with ExitStack() as ending:
        scene = Scene(hosts, tmp_path, ending)
        alone = scene.said()
        hosts["far"].latency_s, hosts["far"].loss = 0.2, 0.05
        for name in DRAFTERS:
            scene.join(name)
        until(lambda: set(scene.accepted()) == set(DRAFTERS), SOON_S, "they did not join")
        for cut in (("far",), DRAFTERS, ("redis",)):
            before = sum(scene.accepted().values())
            until(
                lambda before=before: scene.said() == alone and sum(scene.accepted().values()) > before,
                SOON_S,
                "no guess is accepted",
            )
            for name in cut:
                hosts[name].is_cut = True
            lost = set(DRAFTERS if "redis" in cut else cut)
            until(lambda lost=lost: not lost & set(scene.accepted()), SOON_S, f"{lost} were not missed")
            assert scene.said() == alone
            for name in cut:
                hosts[name].is_cut = False
            assert scene.said() == alone
            until(lambda: set(scene.accepted()) == set(DRAFTERS), SOON_S, "they did not come back")
        assert scene.said() == alone
