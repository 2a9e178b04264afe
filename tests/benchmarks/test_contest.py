"""Servers side by side: processes, turns, and the arithmetic of ratios."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.client import Reply, ask
from benchmarks.contest import RATED_TOKENS, Heat, heat_line, run, standings, standings_table
from benchmarks.processes import Command, Process, idle_cpu
from benchmarks.prompts import Prompt, load
from benchmarks.report import arguments, machine
from server.errors import StartupError
from tests.benchmarks.conftest import STUB
from tests.support import until

PROMPT = Prompt("p-01", [{"role": "user", "content": "?"}])


@pytest.fixture
def stubs() -> Iterator[list[Process]]:
    with ExitStack() as stack:
        servers = [stack.enter_context(Process(Command(name, STUB))) for name in ("a", "b", "c")]
        for server in servers:
            server.wait_ready(n_drafters=1)
        yield servers


def reply(rate: float, text: str = "text", n_tokens: int = 50) -> Reply:
    return Reply(text, n_tokens, 5.0, 2 * rate, rate, n_drafted=10, n_accepted=6)


def test_servers_take_turns_first(stubs: list[Process], monkeypatch: pytest.MonkeyPatch):
    asked: list[int] = []

    def noted(port: int, prompt: Prompt, max_tokens: int) -> Reply:
        asked.append([server.port for server in stubs].index(port))
        return ask(port, prompt, max_tokens)

    monkeypatch.setattr("benchmarks.contest.ask", noted)
    heats = run(stubs, load(3), max_tokens=18)
    assert asked == [0, 1, 2, 1, 2, 0, 2, 0, 1]
    for heat in heats:
        assert [r.n_tokens for r in heat.replies] == [18, 18, 18]
        assert heat.replies[0].text.startswith("one two three")
    table = standings_table(standings([s.name for s in stubs], heats), [0.0, None, 0.0])
    assert table.count("3 of 3") == 3
    assert table.count("(70 %)") == 3


def test_idle_cpu_is_measured(stubs: list[Process]):
    if sys.platform != "linux":
        pytest.skip("CPU times are read from /proc")
    spin = Command("spin", (sys.executable, "-c", "while True: pass"))
    with Process(spin) as spinning:
        until(lambda: (idle_cpu([spinning], 0.5)[0] or 0) > 0.1, "the busy one was never caught")
    idle = idle_cpu(stubs, 0.5)
    assert all(share is not None and share < 0.05 for share in idle)


def test_cpu_time_counts_children():
    if sys.platform != "linux":
        pytest.skip("CPU times are read from /proc")
    busy = "import time; end = time.monotonic() + 30\nwhile time.monotonic() < end: pass"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}])"
    with Process(Command("parent", (sys.executable, "-c", code))) as parent:
        until(lambda: (parent.cpu_seconds() or 0) >= 0.5, "its child's time was not counted")
        child = int(Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text())
        os.kill(child, signal.SIGKILL)


def test_memory_of_main_process(stubs: list[Process]):
    if sys.platform != "linux":
        pytest.skip("memory is read from /proc")
    hungry = Command("hungry", (sys.executable, "-c", "x = b'1' * (300 << 20)\nwhile True: pass"))
    assert 5 << 20 < (stubs[0].memory_bytes() or 0) < 150 << 20
    with Process(hungry) as process:
        until(lambda: (process.memory_bytes() or 0) > 300 << 20, "its memory was not counted")


def test_a_stopped_server_is_gone():
    server = Process(Command("a", STUB))
    server.wait_ready()
    server.stop()
    server.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)


def test_failed_server_is_quoted():
    code = "import sys; print('no such model'); sys.exit(3)"
    with (
        Process(Command("broken", (sys.executable, "-c", code))) as server,
        pytest.raises(StartupError, match="broken ended with status 3: no such model"),
    ):
        server.wait_ready()


def test_hanging_server_is_given_up():
    code = "import threading; print('loading', flush=True); threading.Event().wait()"
    with (
        Process(Command("slow", (sys.executable, "-c", code))) as server,
        pytest.raises(StartupError, match="slow is not ready after"),
    ):
        server.wait_ready(timeout_s=0.3)


def test_a_refused_drafter_is_told_at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STUB_DRAFTER", "refused")
    with (
        Process(Command("duo", STUB)) as server,
        pytest.raises(StartupError, match="duo refused its drafter: why"),
    ):
        server.wait_ready(n_drafters=1)


def test_a_program_that_is_not_there():
    with pytest.raises(StartupError, match="cannot run"):
        Process(Command("none", ("./no-such-server",)))


def test_ratio_is_median_of_ratios():
    rates = [(100.0, 50.0), (10.0, 20.0), (1.0, 3.0)]
    heats = [Heat(PROMPT, [reply(first), reply(second)]) for first, second in rates]
    first, second = standings(["a", "b"], heats)
    assert first.server_ratio == 1.0
    assert second.server_ratio == 2.0
    assert second.server_rate == 20.0
    assert (second.n_drafted, second.n_accepted) == (30, 18)


def test_short_replies_count_for_the_text_only():
    short = Heat(PROMPT, [reply(1.0), reply(90.0, "other", RATED_TOKENS - 1)])
    heats = [short, Heat(PROMPT, [reply(10.0), reply(10.0)])]
    second = standings(["a", "b"], heats)[1]
    assert second.server_ratio == 1.0
    assert (second.n_equal, second.n_heats) == (1, 2)
    assert standings(["a", "b"], [short])[1].server_ratio is None


def test_heat_line_names_other_text():
    line = heat_line(Heat(PROMPT, [reply(10.0), reply(25.0, "other")]))
    assert line.split(": ")[1] == "10.0 t/s | 25.0 x 2.50 (other text)"


def test_printed_command_hides_paths():
    line = arguments(["--llama-server", "/home/me/bin/llama-server", "--sweep", "4"])
    assert line == "--llama-server llama-server --sweep 4"


def test_the_machine_in_a_line():
    assert "cores" in machine()
    assert "\n" not in machine()
