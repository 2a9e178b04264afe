"""duo top: what a person sees of a lead."""

from __future__ import annotations

import io
import socket
from typing import Any

import httpx
import pytest
from rich.console import Console, RenderableType

from server.cli import main
from server.errors import StartupError
from server.terminal.top import Sample, sample, view, watch
from tests.http_lead import Lead

HEALTH: dict[str, Any] = {
    "status": "ok",
    "slots": {"total": 4, "busy": 2},
    "queued": 1,
    "engine": {"step_python_us": 140.4},
    "drafters": [
        {
            "id": "near",
            "kind": "engine",
            "model": "tiny",
            "state": "accepted",
            "reason": None,
            "counts": {"drafted": 200, "accepted": 150, "fresh": 90, "late": 7},
        },
        {"id": "calm", "model": "tiny", "state": "accepted", "rests": "it is too slow", "counts": {}},
        {"id": "odd", "model": "other", "state": "refused", "reason": "vocabularies differ", "counts": {}},
    ],
}
TOTALS = {
    "duo:tokens_predicted_total": 1000.0,
    "duo:steps_total": 400.0,
    "duo:draft_tokens_total": 800.0,
    "duo:draft_tokens_accepted_total": 600.0,
    "duo:prompt_tokens_total": 90.0,
}


def shown(renderable: RenderableType) -> dict[str, str]:
    """Return the lines, keyed by their first words."""
    console = Console(file=io.StringIO(), width=120, highlight=False)
    console.print(renderable)
    file = console.file
    assert isinstance(file, io.StringIO)
    lines = [line for line in file.getvalue().splitlines() if line.strip()]
    return {head.strip(): rest.strip() for head, _, rest in (line.strip().partition("  ") for line in lines)}


def test_rates_span_two_looks():
    grown = (100.0, 40.0, 80.0, 60.0, 500.0)
    later = {name: total + n for (name, total), n in zip(TOTALS.items(), grown, strict=True)}
    lines = shown(view(Sample(12.0, HEALTH, later), Sample(10.0, HEALTH, TOTALS)))
    assert lines["state"] == "ok"
    assert lines["tokens/s"] == "50"
    assert lines["tokens/step"] == "2.50"
    assert lines["accepted"] == "75 % of 80 drafted tokens"
    assert lines["prompt tokens/s"] == "250"
    assert lines["requests"] == "2 of 4 slots, 1 waiting"
    assert lines["Python/step"] == "140 µs"
    assert lines["since the start"] == "1100 tokens"


def test_restarted_lead_never_runs_backwards():
    lines = shown(
        view(Sample(12.0, HEALTH, {"duo:tokens_predicted_total": 40.0}), Sample(10.0, HEALTH, TOTALS))
    )
    assert lines["tokens/s"] == "20"
    assert lines["tokens/step"] == "-"


def test_drafters_have_a_line_each():
    now = Sample(1.0, HEALTH, TOTALS)
    lines = shown(view(now, now))
    assert lines["drafter"].split() == ["model", "tokens", "accepted", "fresh", "late"]
    assert lines["near"].split() == ["engine:", "tiny", "200", "75", "%", "90", "7"]
    assert "refused: vocabularies differ" in lines["odd"]
    assert "rests: it is too slow" in lines["calm"]
    none = Sample(1.0, {**HEALTH, "drafters": []}, TOTALS)
    assert "no drafters" in shown(view(none, none))


def test_once_prints_one_snapshot(lead: Lead, capsys: pytest.CaptureFixture[str]):
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 10}
    httpx.post(f"{lead.url}/v1/chat/completions", json=body)
    assert main(["top", "--url", lead.url, "--once", "--interval", "0.01"]) == 0
    out = capsys.readouterr().out
    assert "ok" in out
    assert "0 of 4 slots" in out
    assert "laptop" in out
    assert "refused: vocabulary sizes differ" in out
    with httpx.Client(base_url=lead.url) as client:
        assert sample(client).totals["duo:tokens_predicted_total"] >= 10


def test_top_survives_a_lost_lead():
    answers = iter([HEALTH, HEALTH, None, HEALTH])
    screens: list[str] = []
    console = Console(file=io.StringIO(), width=120, height=40, force_terminal=True, highlight=False)
    file = console.file
    assert isinstance(file, io.StringIO)

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/metrics":
            return httpx.Response(200, text="")
        if (health := next(answers)) is None:
            raise httpx.ConnectError("refused", request=request)
        return httpx.Response(200, json=health)

    def wait() -> None:
        screens.append(file.getvalue())
        if len(screens) == 4:
            raise KeyboardInterrupt
        file.truncate(0)

    with httpx.Client(base_url="http://lead", transport=httpx.MockTransport(answer)) as client:
        with pytest.raises(KeyboardInterrupt):
            watch(console, client, sample(client), wait)
    assert ["tokens/s" in screen for screen in screens] == [True, True, False, True]
    assert "no lead answers" in screens[2]


def test_nobody_there_is_told_in_one_line(capsys: pytest.CaptureFixture[str]):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert main(["top", "--url", f"http://127.0.0.1:{port}", "--once"]) == 1
    assert "no lead answers" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [("/metrics", 404, "{}"), ("/metrics", 200, "no such text 1 2 3 {"), ("/health", 200, "[")],
)
def test_somebody_else_is_not_a_lead(path: str, status: int, text: str):
    def answer(request: httpx.Request) -> httpx.Response:
        return (
            httpx.Response(status, text=text)
            if request.url.path == path
            else httpx.Response(200, text="{}" if request.url.path == "/health" else "")
        )

    with httpx.Client(base_url="http://lead", transport=httpx.MockTransport(answer)) as client:
        with pytest.raises(StartupError, match="is not a lead"):
            sample(client)
