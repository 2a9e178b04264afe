"""duo chat through a pseudo-terminal, and in pipes, against a lead over the toy model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias, cast

import pexpect
import pytest

from server.api.access import Access
from server.api.middleware import Edge
from server.flags import read
from server.lead.listening import ClientPolicy
from server.terminal.chat_command import ChatSettings
from tests.fake_backend import FakeBackend, FakeModel
from tests.http_lead import Lead, serving

Child: TypeAlias = "pexpect.spawn[str]"
Start: TypeAlias = Callable[..., Child]
COMMAND = [sys.executable, "-m", "server", "chat"]
ENDED = r"prompt tokens reused"
PROMPT = r"> "


def environment(home: Path, **more: str) -> dict[str, str]:
    known = {name: value for name, value in os.environ.items() if not name.startswith("DUO_")}
    return {**known, "XDG_STATE_HOME": str(home), "TERM": "xterm-256color", "COLUMNS": "200", **more}


def heeds_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Yield a function that starts duo chat on a pseudo-terminal and ends what is left of it.

    Ctrl-C works as in terminals, even where the suite runs in the background of a shell.
    """
    started: list[Child] = []

    def begin(lead: Lead, *flags: str, **more: str) -> Child:
        argv = [*COMMAND[1:], "--url", lead.url, *flags]
        env = environment(tmp_path, **more)
        child: Child = pexpect.spawn(
            COMMAND[0],
            argv,
            30,
            env=cast(Any, env),
            encoding="utf-8",
            dimensions=(40, 200),
            preexec_fn=heeds_interrupts,
        )
        started.append(child)
        return child

    yield begin
    for child in started:
        child.close(force=True)


def asked(child: Child, text: str) -> None:
    child.expect(PROMPT)
    child.send(text + "\r")


def test_chat_edits_lines_and_leaves(start: Start, lead: Lead, tmp_path: Path):
    child = start(lead)
    child.expect("toy at http")
    asked(child, "helo\x1b[Dl")  # the arrow to the left, and the letter that was missing
    child.expect(ENDED)
    asked(child, ":quit")
    child.expect(pexpect.EOF)
    history = tmp_path / "duo" / "chat_history"
    assert "+hello" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0
    lead.until_idle()


def saved(child: Child, path: Path) -> list[tuple[str, str]]:
    asked(child, f":save {path}")
    child.expect("Saved as")
    return [(one["role"], one["content"]) for one in json.loads(path.read_text())["messages"]]


def test_pasted_lines_are_one_message(start: Start, lead: Lead, tmp_path: Path):
    child = start(lead)
    child.expect(PROMPT)
    child.send("\x1b[200~first\nsecond\x1b[201~")  # a bracketed paste
    child.expect("second")
    child.send("\\\rthird\r")
    child.expect(ENDED)
    assert saved(child, tmp_path / "talk.json")[0] == ("user", "first\nsecond\nthird")


def test_every_command_does_what_help_says(start: Start, lead: Lead, tmp_path: Path):
    child = start(lead, "--max-tokens", "8")
    asked(child, ":help")
    for name in (":new", ":retry", ":system", ":set", ":save", ":load", ":quit"):
        child.expect_exact(f"  {name}")
    asked(child, ":nwe")
    child.expect(":nwe is no command \\(did you mean :new\\?\\) and was not sent")
    asked(child, ":retry")
    child.expect("nothing was asked yet")
    asked(child, ":system Be brief.")
    child.expect("The system message is set.")
    asked(child, ":set temperature 0")
    child.expect("temperature: 0")
    asked(child, ":set")
    child.expect("max_tokens 8")
    asked(child, "hello")
    child.expect("8 tokens at")
    before = saved(child, tmp_path / "one.json")
    assert before[:2] == [("system", "Be brief."), ("user", "hello")]
    asked(child, ":retry")
    child.expect(ENDED)
    assert saved(child, tmp_path / "two.json") == before  # at temperature 0
    asked(child, ":set max_tokens 4")
    asked(child, "and then?")
    child.expect("4 tokens at")
    asked(child, ":new")
    child.expect("A new conversation.")
    assert saved(child, tmp_path / "three.json") == [("system", "Be brief.")]
    asked(child, f":load {tmp_path / 'one.json'}")
    child.expect("hello")
    assert saved(child, tmp_path / "four.json") == before
    asked(child, ":load nowhere.json")
    child.expect("nowhere.json cannot be read")
    asked(child, ":set max_tokens wrong")
    child.expect("wrong")
    asked(child, "hello")
    child.expect("max_tokens")
    asked(child, ":quit")
    child.expect(pexpect.EOF)


def test_ctrl_c_ends_reply_then_chat(start: Start, slow_lead: Lead):
    child = start(slow_lead)
    asked(child, "go on forever")
    slow_lead.until(lambda engine: engine.n_active == 1)
    child.expect(r"[a-z]{3}")
    child.sendintr()
    slow_lead.until_idle()
    child.expect(PROMPT)
    child.sendintr()
    child.expect("Ctrl-C again leaves")
    child.expect(PROMPT)
    child.sendintr()
    child.expect(pexpect.EOF)


def run(url: str, home: Path, *argv: str, given: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    command, env = [*COMMAND, *(["--url", url] if url else []), *argv], environment(home, **more)
    return subprocess.run(
        command, input=given, capture_output=True, text=True, env=env, timeout=60, check=False
    )


def test_a_question_prints_the_reply_alone(lead: Lead, tmp_path: Path):
    flags = ("--temp", "0", "--max-tokens", "12")
    first = run(lead.url, tmp_path, *flags, "what", "is", "it?")
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout.strip()
    assert "\x1b" not in first.stdout
    assert "tokens" not in first.stdout
    assert run(lead.url, tmp_path, *flags, given="what is it?\n").stdout == first.stdout
    both = run(lead.url, tmp_path, *flags, "what is", given="it?")
    assert both.returncode == 0
    assert both.stdout != first.stdout  # the question, and below it what was piped in
    assert run(lead.url, tmp_path, *flags).returncode == 1
    lead.until_idle()


def test_invalid_utf_8_is_replaced(lead: Lead, tmp_path: Path):
    command, env = [*COMMAND, "--url", lead.url, "--max-tokens", "3"], environment(tmp_path)
    latin = "caf\xe9".encode("latin-1")
    for more, given in (([], latin), ([os.fsdecode(latin)], b"")):
        asked = subprocess.run(
            [*command, *more], input=given, capture_output=True, env=env, timeout=60, check=False
        )
        assert (asked.returncode, asked.stderr) == (0, b"")


def test_address_has_several_spellings(lead: Lead, tmp_path: Path):
    for spelled in ("http://a:1", "a:1", "a:1/", "http://a:1/v1", "a:1/v1/"):
        assert read(ChatSettings, ["--url", spelled]).url == "http://a:1"
    host = lead.url.removeprefix("http://")
    assert run("", tmp_path, "--max-tokens", "3", "hello", DUO_URL=f"{host}/v1").returncode == 0


def test_missing_key_is_explained(tmp_path: Path):
    door = ClientPolicy(Edge(access=Access(["sk-right", "schl\xfcssel"])), None, 0)
    with serving(FakeBackend(FakeModel(seed=3)), door=door) as lead:
        refused = run(lead.url, tmp_path, "hello")
        assert refused.returncode == 1
        assert "--api-key" in refused.stderr
        assert refused.stderr.count("\n") == 1
        assert run(lead.url, tmp_path, "--api-key", "sk-right", "--max-tokens", "3", "hello").returncode == 0
        for key in ("sk-right", "schl\xfcssel"):
            assert run(lead.url, tmp_path, "--max-tokens", "3", "hello", DUO_API_KEY=key).returncode == 0


def test_bad_address_is_one_line(tmp_path: Path):
    refused = run("http://[::", tmp_path, "hello")
    assert refused.returncode == 1
    assert refused.stderr.startswith("duo chat: http://[:: is no address of a lead")
    assert refused.stderr.count("\n") == 1


def test_missing_lead_is_one_line(tmp_path: Path):
    gone = run("127.0.0.1:9", tmp_path, "hello")
    assert gone.returncode == 1
    assert gone.stderr.startswith("duo chat: no lead answers at http://127.0.0.1:9")
    assert gone.stderr.count("\n") == 1
