"""duo serve as its clients meet it: while it loads, with keys, with a log for programs, and when it ends."""

from __future__ import annotations

import json
import signal
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest

from tests.contract.contract import validate
from tests.process.duo import READY_S, Duo, until

pytestmark = [pytest.mark.model, pytest.mark.timeout(240)]

KEY = {"Authorization": "Bearer sk-right"}
SECRET = "a word that no log may tell"
DRAINED_S = 5.0  # of a reply that is running when the lead is told to end: it notices within 0.1 s
BODY = {"messages": [{"role": "user", "content": SECRET}], "ignore_eos": True, "temperature": 0}


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    file.write_text("# for the tests\nsk-right\n")
    return file


def first_answer(duo: Duo, path: str) -> httpx.Response:
    """Return what the socket answers first."""
    answers: list[httpx.Response] = []

    def answered() -> bool:
        try:
            answers.append(httpx.get(duo.url + path, timeout=30))
        except httpx.ConnectError:
            assert duo.process.poll() is None, duo.log.read_text()
        return bool(answers)

    until(answered, 60, "it never listened")
    return answers[0]


@pytest.fixture
def hangups() -> Generator[None]:
    """Let processes started now hear hang-ups, even where the tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangups")
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGHUP])
def test_from_the_first_answer_to_the_last(keys: Path, tmp_path: Path, ending: signal.Signals):
    flags = ("--threads", "1", "--log-format", "json", "--log-requests", "--grace", "200")
    with Duo(tmp_path, "serve", *flags, "--api-key-file", str(keys)) as duo:
        health = first_answer(duo, "/health")
        assert (health.status_code, health.json()["status"]) == (503, "loading")
        validate("Health", health.json())
        duo.wait_until_ready()
        assert httpx.get(f"{duo.url}/ready").status_code == 200
        url = f"{duo.url}/v1/chat/completions"
        assert httpx.post(url, json=BODY).status_code == 401
        short = httpx.post(url, json={**BODY, "max_tokens": 60}, headers=KEY, timeout=60).json()
        n_tokens = round(DRAINED_S * short["timings"]["predicted_per_second"])
        body = {**BODY, "max_tokens": n_tokens, "context_shift": True, "stream": True}
        with httpx.stream("POST", url, json=body, headers=KEY, timeout=60) as running:
            arriving = running.iter_text()
            text = next(arriving)
            duo.process.send_signal(ending)
            until(lambda: httpx.get(f"{duo.url}/ready").status_code == 503, 60, "it never drained")
            refused = httpx.post(url, json=BODY, headers=KEY, timeout=20)
            assert refused.status_code == 503
            assert refused.headers["retry-after"]
            text += "".join(arriving)
        assert text.endswith("data: [DONE]\n\n")
        assert duo.process.wait(60) == 0
    log = duo.log.read_text()
    lines = [json.loads(line) for line in log.splitlines()]
    assert SECRET not in log
    assert "sk-right" not in log
    told = [line for line in lines if line["logger"] == "duo.requests"]
    by_status = {line["status"]: line for line in told if line["path"] == "/v1/chat/completions"}
    assert set(by_status) == {200, 401, 503}
    assert by_status[200]["completion_tokens"] == n_tokens
    assert by_status[200]["key"]


def test_unservable_model_is_one_line(tmp_path: Path):
    for flags, says in (
        (
            ["--ssl-key-file", str(tmp_path / "none"), "--ssl-cert-file", str(tmp_path / "none")],
            "--ssl-key-file",
        ),
        (["--api-key-file", str(tmp_path / "none")], "cannot read the API keys"),
        (["--log-format", "json", "--print", "all"], "--print"),
    ):
        with Duo(tmp_path, "serve", *flags) as duo:
            assert duo.process.wait(READY_S) == 1
        assert says in duo.log.read_text()
        assert duo.log.read_text().count("\n") == 1
