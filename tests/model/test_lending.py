"""A model split over two lenders, with a drafter beside: its text, and what happens when a lender is gone."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from drafters.drafter_settings import BUNDLED_MODEL as DRAFT
from server.errors import StartupError
from server.llama import lenders
from server.llama.devices import has_rpc
from server.llama.lenders import greet
from tests.model.conftest import redis_server
from tests.model.live import DrafterProcess
from tests.process.duo import QUESTION, Duo, endless_reply, free_port, run, until

pytestmark = [
    pytest.mark.model,
    pytest.mark.redis,
    pytest.mark.timeout(240),
    pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc"),
    pytest.mark.skipif(not has_rpc(), reason="this build of llama.cpp has no RPC backend (GGML_RPC)"),
]

EXACT = (
    *("--threads", "1", "--parallel", "1", "--ctx-size", "1024", "--no-lookup"),
    *("--flash-attn", "off", "--cache-type-k", "f32", "--cache-type-v", "f32"),
)
"""Q8_0 on one thread: every width has the same bits (conftest.py), here and at lenders that run this build on
this processor, as duo probe --rpc and test_a_split_model… say."""
DRAFTED = ("--draft-mode", "async", "--no-gate", "--draft-max", "4")
ENDS_S = 60.0  # of a lead whose lender is gone: under a second on an idle machine


@dataclass(frozen=True)
class Row:
    """Four processes: two lenders, a lead over both and a drafter."""

    lenders: tuple[Lender, Lender]
    lead: Duo
    drafter: DrafterProcess


class Lender:
    """A duo lend process, ready when it is made."""

    def __init__(self, *flags: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "server", "lend", "--port", "0", "--threads", "1", *flags],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout
        self.told = self.process.stdout.readline()
        self.address = self.told.split()[-1]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout
        self.process.stdout.close()


@contextmanager
def in_a_row(folder: Path) -> Generator[Row]:
    with ExitStack() as stack:
        both = Lender(), Lender()
        for one in both:
            stack.enter_context(closing(one))
        url = stack.enter_context(redis_server()).url
        drafter = stack.enter_context(closing(DrafterProcess(url, DRAFT, "--threads", "1")))
        rpc = ",".join(one.address for one in both)
        lead = stack.enter_context(Duo(folder, "serve", *EXACT, *DRAFTED, "--redis", url, "--rpc", rpc))
        lead.wait_until_ready(n_drafters=1)
        yield Row(both, lead, drafter)


@pytest.fixture
def row(tmp_path: Path) -> Iterator[Row]:
    """Yield a row for the test to kill."""
    with in_a_row(tmp_path) as one:
        yield one


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Row]:
    """Yield a row to share; only its drafter may be killed."""
    with in_a_row(tmp_path_factory.mktemp("row")) as one:
        yield one


def connections(lender: Lender) -> int:
    """Return the open connections of others to a lender, by /proc/net/tcp."""
    port = int(lender.address.rpartition(":")[2])
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return sum(line.split()[2].endswith(f":{port:04X}") and line.split()[3] == "01" for line in lines)


def test_split_model_keeps_its_text(lasting: Row, tmp_path: Path):
    with Duo(tmp_path, "serve", *EXACT, "--draft-max", "0") as alone:
        alone.wait_until_ready()
        expected = alone.ask(QUESTION)
    assert [connections(lender) for lender in lasting.lenders] == [1, 1], "each holds a part"
    reply = lasting.lead.ask(QUESTION)
    assert reply["choices"] == expected["choices"]
    assert reply["timings"]["draft_n_accepted"] > 20
    chunks = endless_reply(lasting.lead)
    next(chunks)
    lasting.drafter.signal(signal.SIGKILL)
    until(lambda: next(chunks)["choices"] and not lasting.lead.drafters(), ENDS_S, "it was not missed")
    assert all(next(chunks)["choices"] for _ in range(20)), "the reply goes on"
    chunks.close()
    assert lasting.lead.ask(QUESTION)["choices"] == expected["choices"]


def test_wrong_lender_is_one_line(lasting: Row, monkeypatch: pytest.MonkeyPatch):
    nobody, busy = f"127.0.0.1:{free_port()}", lasting.lenders[0].address
    with pytest.raises(StartupError, match=f"--rpc: {nobody} cannot be reached"):
        greet(nobody)
    with monkeypatch.context() as patch:
        patch.setattr(lenders, "GREETING_TIMEOUT_S", 0.5)  # the others answer at once, if the machine is free
        with pytest.raises(StartupError, match=f"--rpc: {busy} does not answer"):
            greet(busy)
    ended = run("serve", "--port", "0", "--rpc", nobody)
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"duo serve: --rpc: {nobody} cannot be reached")
    assert ended.stderr.count("\n") == 1, ended.stderr
    with pytest.raises(StartupError, match="is no lender"):
        greet(lasting.lead.url.removeprefix("http://"))


def test_lender_refuses_a_taken_port(lasting: Row):
    told = lasting.lenders[0].told
    what = r"duo lends CPU \(.*, \d+ MiB\) on 127\.0\.0\.1:\d+; .*duo up --rpc 127\.0\.0\.1:\d+"
    assert re.match(what, told)
    ended = run("lend", "--port", told.rpartition(":")[2].strip())
    assert ended.returncode == 1
    assert "Address already in use" in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("which", [0, 1])
def test_killed_lender_ends_the_lead(which: int, row: Row):
    chunks = endless_reply(row.lead)
    for _ in range(20):
        assert next(chunks)["choices"]
    row.lenders[which].process.kill()
    *_, last = chunks
    why = f"the lender {row.lenders[which].address} is gone"
    assert why in last["error"]["message"]
    assert row.lead.process.wait(ENDS_S) == 1
    log = row.lead.log.read_text()
    assert log.endswith(f"\nduo serve: {why}: start duo lend there again, then this lead\n")
    assert "Traceback" not in log
    other = row.lenders[1 - which]
    until(lambda: not connections(other), ENDS_S, "the lead's connection outlived it")
    greet(other.address)


def test_lender_lost_idle_is_noticed(row: Row):
    row.lenders[1].process.send_signal(signal.SIGINT)
    assert row.lenders[1].process.wait(ENDS_S) == 0
    assert row.lead.process.wait(ENDS_S) == 1
    assert f"the lender {row.lenders[1].address} is gone" in row.lead.log.read_text()


def test_stopped_lender_ends_waiting_lead(tmp_path: Path):
    """Its kernel confirms what arrives, so only missing steps tell."""
    with closing(Lender()) as lender:
        flags = ("--draft-max", "0", "--rpc", lender.address, "--watchdog", "3")
        with Duo(tmp_path, "serve", *EXACT, *flags) as lead:
            lead.wait_until_ready()
            chunks = endless_reply(lead)
            assert next(chunks)["choices"]
            lender.process.send_signal(signal.SIGSTOP)
            *_, last = chunks
            assert "no step of the model has finished for" in last["error"]["message"]
            assert lead.process.wait(ENDS_S) == 1
            log = lead.log.read_text()
    assert re.search(r"\nduo serve: no step of the model has finished for \d+ s\n$", log)
    assert "Traceback" not in log
