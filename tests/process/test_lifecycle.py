"""duo as a user runs it: start, answer, lose a child, be killed, leave nothing behind."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest

from server.api.prompt_work import N_THREADS
from server.local.embedded import EmbeddedServer
from server.settings import BUNDLED_MODEL
from tests.contract.contract import validate
from tests.process.duo import QUESTION, READY_S, Duo, alive, run, until

pytestmark = [pytest.mark.model, pytest.mark.redis, pytest.mark.timeout(180)]

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")

ASYNC = ("--threads", "1", "--draft-mode", "async", "--no-gate", "--no-lookup", "--draft-max", "8")
"""A drafter process on every machine, and all of its drafts verified though they do not pay with so small a
model."""


@contextmanager
def started(folder: Path) -> Generator[Duo]:
    with Duo(folder, "up", *ASYNC, "--print", "all") as duo:
        duo.wait_until_ready(n_drafters=1)
        yield duo


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Duo]:
    """Yield a duo up for the test to stop or kill."""
    with started(tmp_path) as one:
        yield one


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Duo]:
    """Yield a duo up that must not be stopped."""
    with started(tmp_path_factory.mktemp("up")) as one:
        yield one


@linux_only
def test_up_answers_with_drafts_and_leaves_nothing(up: Duo, tmp_path: Path):
    reply = up.ask(QUESTION)
    validate("ChatCompletion", reply)
    assert "**Concurrency** is managing several tasks" in reply["choices"][0]["message"]["content"]
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert reply["timings"]["draft_n_accepted"] > 20
    with openai.OpenAI(base_url=f"{up.url}/v1", api_key="none") as client:
        stream = client.chat.completions.create(
            model="default", messages=[{"role": "user", "content": QUESTION}], temperature=0, stream=True
        )
        text = "".join(c.delta.content or "" for chunk in stream for c in chunk.choices)
    assert text == reply["choices"][0]["message"]["content"]
    assert up.ask(QUESTION, speculative=False)["timings"]["draft_n"] == 0
    children = up.descendants()
    assert len(children) >= 2, "an embedded server and a drafter"
    assert up.stop() == 0
    until(lambda: not any(map(alive, children)), READY_S, "children outlived duo")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("duo-redis-")]
    log = up.log.read_text()
    assert "page     http://127.0.0.1:" in log
    assert "joined" in log
    assert "tokens/s" in log
    assert "accepted" in log
    assert "Traceback" not in log


def test_the_readmes_script_works_as_it_stands(lasting: Duo):
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    [script] = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert "http://127.0.0.1:5555" in script
    script = script.replace("http://127.0.0.1:5555", lasting.url)
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.split()) >= 3


def child(up: Duo, argument: str) -> int:
    """Return the id of the process below duo that shows this as its command line."""
    return next(pid for pid in up.descendants() if argument in Path(f"/proc/{pid}/cmdline").read_text())


@linux_only
def test_a_drafter_that_dies_is_started_again(lasting: Duo):
    [before] = lasting.drafters()
    os.kill(child(lasting, "drafters"), signal.SIGKILL)
    until(lambda: [d for d in lasting.drafters() if d["id"] != before["id"]], READY_S, "no new drafter came")
    assert lasting.ask(QUESTION)["timings"]["draft_n_accepted"] > 20


@linux_only
def test_a_redis_that_dies_is_started_again(up: Duo):
    os.kill(child(up, "unixsocket:"), signal.SIGKILL)
    until(lambda: "is back" in up.log.read_text(), READY_S, "the server was not started again")
    until(lambda: up.log.read_text().count("joined") >= 2, READY_S, "the drafter did not join again")
    assert up.ask(QUESTION)["timings"]["draft_n_accepted"] > 20


def test_draft_model_runs_in_lead(tmp_path: Path):
    with Duo(tmp_path, "up", "--threads", "1", "--draft-mode", "sync", "--no-gate", "--no-lookup") as duo:
        duo.wait_until_ready()
        reply = duo.ask(QUESTION)
        assert reply["timings"]["draft_n_accepted"] > 20
        assert set(reply["metrics"]["speculative_decoding"]["drafters"]) == {"draft"}
        assert duo.drafters() == []
        assert duo.stop() == 0
    assert "in this process" in duo.log.read_text()


@linux_only
def test_few_cores_draft_in_the_lead(tmp_path: Path):
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, [min(cores)])  # so few that a drafter would take the lead's
    try:
        duo = Duo(tmp_path, "up", "--threads", "1")
    finally:
        os.sched_setaffinity(0, cores)
    with duo:
        duo.wait_until_ready()
        assert "the draft model runs inside the lead" in duo.log.read_text()
        assert (duo.drafters(), duo.ask(QUESTION)["choices"][0]["finish_reason"]) == ([], "stop")
        assert duo.stop() == 0


def test_rejection_needs_an_inner_draft(tmp_path: Path):
    flags = ("--threads", "1", "--draft-mode", "sync", "--verify", "rejection", "--no-gate")
    with Duo(tmp_path, "up", *flags) as duo:
        duo.wait_until_ready()
        assert duo.ask(QUESTION)["timings"]["draft_n_accepted"] > 20
        assert duo.stop() == 0


@linux_only
def test_kill_9_takes_the_children_along(up: Duo, tmp_path: Path):
    children = up.descendants()
    up.stop(signal.SIGKILL)
    until(lambda: not any(map(alive, children)), READY_S, "children outlived duo")
    with started(tmp_path):
        left = [path for path in tmp_path.iterdir() if path.name.startswith("duo-redis-")]
        assert len(left) == 1, "the next start removes what the last one left"


def test_no_redis_means_no_drafters(duo: Duo):
    assert duo.ask("Hello!")["choices"][0]["message"]["content"]
    assert "drafters none" in duo.log.read_text()


def test_endless_template_allows_shutdown(tmp_path: Path):
    """It does not end for one message; one that never ends is refused at the start."""
    loops = "{% for a in range(9999) %}" * 3 + "{% endfor %}" * 3
    loops = "{% if messages[0].content == 'loop' %}" + loops + "{% endif %}{{ messages[0].content }}"
    body = {"messages": [{"role": "user", "content": "loop"}]}

    async def asked(duo: Duo) -> None:
        async with httpx.AsyncClient(timeout=60) as client:
            asking = [
                asyncio.ensure_future(client.post(f"{duo.url}/v1/chat/completions", json=body))
                for _ in range(N_THREADS + 1)
            ]
            await asyncio.to_thread(
                until, lambda: (duo.health() or {})["queued"] == 1, 60, "nothing rendered"
            )
            assert await asyncio.to_thread(duo.stop) == 0
            await asyncio.gather(*asking, return_exceptions=True)

    with Duo(tmp_path, "serve", "--chat-template", loops, "--draft-max", "0") as duo:
        duo.wait_until_ready()
        asyncio.run(asked(duo))


def missing(folder: Path) -> str:
    return str(folder / "no-such.gguf")


def corrupt(folder: Path) -> str:
    path = folder / "corrupt.gguf"
    path.write_bytes(BUNDLED_MODEL.read_bytes()[:1_000_000])
    return str(path)


def not_gguf(folder: Path) -> str:
    path = folder / "text.gguf"
    path.write_text("not a model")
    return str(path)


@pytest.mark.parametrize(
    ("command", "model", "says"),
    [
        ("serve", missing, "no model file at "),
        ("up", missing, "no model file at "),
        ("draft", missing, "no model file at "),
        ("up", corrupt, "llama.cpp cannot load"),
        ("draft", corrupt, "llama.cpp cannot load"),
        ("serve", not_gguf, "is not a GGUF file"),
    ],
)
def test_a_bad_model_is_one_line(command: str, model: Callable[[Path], str], says: str, tmp_path: Path):
    with EmbeddedServer() as server:
        flags = ["--redis", server.url] if command == "draft" else ["--port", "0"]
        result = run(command, "--model", model(tmp_path), *flags)
    assert result.returncode == 1
    assert says in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["serve", "up"])
def test_a_port_in_use_is_one_line(command: str):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = run(command, "--port", str(taken.getsockname()[1]))
    assert result.returncode == 1
    assert "choose another address with --host or --port" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["serve", "up", "draft"])
def test_an_unreachable_redis_is_one_line(command: str):
    flags = ["--port", "0"] if command != "draft" else []
    result = run(command, "--redis", "redis://127.0.0.1:1", *flags)
    assert result.returncode == 1
    assert "give the right URL with --redis" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["serve", "--threads", "many"], 1, "--threads"),
        (["serve", "--port", "99999"], 1, "--port"),
        (["up", "--draft-model", "nowhere.gguf"], 1, "no model file at nowhere.gguf"),
        (["chat", "--url", "http://127.0.0.1:1"], 1, "no lead answers at http://127.0.0.1:1"),
        (["serve", "--no-such-flag"], 2, "--no-such-flag"),
        (["dance"], 2, "no such command"),
        ([], 2, "usage: duo COMMAND"),
    ],
)
def test_bad_usage_says_what_is_wrong(arguments: list[str], status: int, says: str):
    result = run(*arguments)
    assert result.returncode == status
    assert says in result.stderr
    assert "Traceback" not in result.stderr
