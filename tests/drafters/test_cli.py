"""The duo-drafter command: its errors in one line, and a real process on a real server from start to end."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console

from drafters.drafter_cli import main, status_line
from drafters.drafter_settings import BUNDLED_MODEL, DrafterSettings
from drafters.worker import Worker
from server.drafting.model_drafter import ModelDrafter
from server.flags import read
from server.llama.llamacpp import LlamaBackend, LlamaOptions
from server.local.embedded import EmbeddedServer
from server.sampling.params import SamplingParams
from server.speculation.wire.messages import Draft, Message, Open, chain_start
from server.speculation.wire.presence import MAX_CAPACITY, Presence, VocabularyCard, vocabulary_card
from server.speculation.wire.roster import read_card, write_card
from server.speculation.wire.streams import RedisBus
from tests.fake_backend import FakeBackend, FakeVocabulary
from tests.memory_bus import MemoryPool

READY_S = 30.0
TOLD = (*range(300, 320), *range(300, 310))


@pytest.fixture(scope="module")
def server() -> Generator[EmbeddedServer]:
    with EmbeddedServer() as server:
        yield server


def error_of(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the command's error when it cannot start, which must be one line."""
    assert main(arguments) == 1
    [line] = capsys.readouterr().err.splitlines()
    return line


def test_drafter_requires_a_redis(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("DUO_REDIS", raising=False)
    assert "--redis" in error_of([], capsys)


def test_an_unreachable_redis_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    line = error_of(["--redis", f"unix://{tmp_path}/nobody.sock"], capsys)
    assert line.startswith("duo-drafter: cannot reach a Redis server")


@pytest.mark.redis
def test_missing_and_corrupt_models_are_named(
    capsys: pytest.CaptureFixture[str], server: EmbeddedServer, tmp_path: Path
):
    missing, corrupt = tmp_path / "missing.gguf", tmp_path / "corrupt.gguf"
    corrupt.write_bytes(BUNDLED_MODEL.read_bytes()[:100_000])
    assert f"no model file at {missing}" in error_of(["--redis", server.url, "-m", str(missing)], capsys)
    assert f"cannot load {corrupt}" in error_of(["--redis", server.url, "-m", str(corrupt)], capsys)


def test_a_wrong_flag_is_named(capsys: pytest.CaptureFixture[str]):
    assert "--threads" in error_of(["--redis", "unix:///x", "--threads", "0"], capsys)


def test_offered_sessions_are_bounded(capsys: pytest.CaptureFixture[str]):
    assert "--capacity" in error_of(["--redis", "unix:///x", "--capacity", str(MAX_CAPACITY + 1)], capsys)
    capacity = read(DrafterSettings, ["--capacity", str(MAX_CAPACITY)]).capacity
    card = Presence("drafter", "drafter", "lookup", "0", vocabulary_card(FakeVocabulary()), capacity)
    assert read_card("drafter:drafter", write_card(card)) == card


def test_the_environment_gives_what_flags_do_not(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DUO_REDIS", "redis://shared")
    assert read(DrafterSettings, []).redis_url == "redis://shared"
    monkeypatch.setenv("DUO_DRAFTER_REDIS", "redis://own")
    monkeypatch.setenv("DUO_DRAFTER_PATH_MIN", "0.2")
    settings = read(DrafterSettings, [])
    assert (settings.redis_url, settings.path_min) == ("redis://own", 0.2)


class Lead:
    """A lead on a real bus that opens one session with every drafter it sees."""

    def __init__(self, url: str, vocabulary: VocabularyCard) -> None:
        self._own = Presence("lead", "lead", "toy", "0", vocabulary, 1)
        self._bus = RedisBus(url, "default", self._own)
        self._heard = threading.Condition()
        self._present: list[str] = []
        self._capacities: list[int] = []
        self._drafts: list[Draft] = []

    def __enter__(self) -> Lead:
        self._bus.start(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._bus.close()

    def received(self, message: Message) -> None:
        with self._heard:
            if isinstance(message, Draft):
                self._drafts.append(message)
            self._heard.notify_all()

    def peers(self, present: Sequence[Presence]) -> None:
        tokens = TOLD
        with self._heard:
            for peer in present:
                if peer.id not in self._present:
                    opening = Open("lead", 1, chain_start(tokens), 8, SamplingParams(0.0), tokens)
                    self._bus.send(peer.id, opening)
            self._present = [peer.id for peer in present]
            self._capacities = [peer.capacity for peer in present]
            self._heard.notify_all()

    def until_drafted(self) -> None:
        self._until(lambda: bool(self._drafts))

    def drafted(self) -> list[int]:
        with self._heard:
            return [token for draft in self._drafts for token in draft.tokens]

    def capacities(self) -> list[int]:
        with self._heard:
            return self._capacities

    def until_alone(self) -> None:
        self._until(lambda: not self._present)

    def _until(self, condition: Callable[[], bool]) -> None:
        with self._heard:
            assert self._heard.wait_for(condition, READY_S)


@pytest.fixture(scope="module")
def card() -> VocabularyCard:
    options = LlamaOptions(BUNDLED_MODEL, n_cells=256, n_seqs=1)
    with closing(LlamaBackend(options)) as backend:
        return vocabulary_card(backend.vocab)


def drafter_process(server: EmbeddedServer, *flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "drafters", "--redis", server.url, "--end-with-parent", *flags]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.redis
@pytest.mark.model
@pytest.mark.parametrize("ending", ["SIGTERM", "SIGINT", "SIGHUP", "the parent's end"])
def test_process_drafts_until_told(server: EmbeddedServer, card: VocabularyCard, ending: str):
    with Lead(server.url, card) as lead, drafter_process(server) as process:
        try:
            lead.until_drafted()
            if ending == "the parent's end":
                assert process.stdin is not None
                process.stdin.close()
                process.stdin = None
            else:
                process.send_signal(signal.Signals[ending])
            output, errors = process.communicate(timeout=READY_S)
        finally:
            process.kill()
        assert (process.returncode, errors) == (0, "")
        assert "lead lead (toy) joined" in output
        lead.until_alone()


@pytest.mark.redis
@pytest.mark.model
@pytest.mark.parametrize("kind", ["lookup", "replay"])
def test_a_process_drafts_without_a_model(
    server: EmbeddedServer, card: VocabularyCard, kind: str, tmp_path: Path
):
    texts = tmp_path / "texts.jsonl"
    texts.write_text(str([*TOLD, *range(310, 320)]))
    flags = ["--kind", kind, "--texts", str(texts), "--accept", "1", "--latency-ms", "5"]
    with Lead(server.url, card) as lead, drafter_process(server, *flags) as process:
        try:
            lead.until_drafted()
            drafted = lead.drafted()  # once, because more may arrive at any moment
            assert drafted == [*range(310, 310 + len(drafted))]
            output, errors = process.communicate("", timeout=READY_S)
        finally:
            process.kill()
        assert (process.returncode, errors) == (0, "")
        assert f": {kind}" in output
        lead.until_alone()


@pytest.mark.redis
@pytest.mark.model
def test_process_translates_other_vocabularies(server: EmbeddedServer, card: VocabularyCard):
    """Both vocabularies are equal here; the drafter must take the lead's for its own."""
    flags = ["--translate", str(BUNDLED_MODEL), "--capacity", "2"]
    with Lead(server.url, card) as lead, drafter_process(server, *flags) as process:
        try:
            lead.until_drafted()
            assert lead.capacities() == [2]
            _, errors = process.communicate("", timeout=READY_S)
        finally:
            process.kill()
        assert (process.returncode, errors) == (0, "")
        lead.until_alone()


@pytest.mark.redis
def test_a_replay_wants_texts(server: EmbeddedServer, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    assert "--texts" in error_of(["--redis", server.url, "--kind", "replay"], capsys)
    missing = str(tmp_path / "missing")
    assert missing in error_of(["--redis", server.url, "--kind", "replay", "--texts", missing], capsys)


def test_unknown_kind_lists_known_ones(server: EmbeddedServer, capsys: pytest.CaptureFixture[str]):
    told = error_of(["--redis", server.url, "--kind", "oracle"], capsys)
    assert "'oracle'" in told
    assert told.rstrip().endswith("model, engine, lookup, replay")


def test_the_status_line_shows_on_a_terminal():
    pool, card = MemoryPool(), vocabulary_card(FakeVocabulary())
    own = Presence("drafter", "drafter", "toy", "0", card, 1)
    worker = Worker(pool.bus(own), own, ModelDrafter(FakeBackend()))
    worker.peers([Presence("lead", "lead", "toy", "0", card, 1)])
    worker.turn(wait=False)
    screen, plain = io.StringIO(), io.StringIO()
    with status_line(worker, Console(file=plain)):
        pass
    with status_line(worker, Console(file=screen, force_terminal=True, width=100)):
        deadline = time.monotonic() + READY_S
        while "1 lead, 0 sessions" not in screen.getvalue():
            assert time.monotonic() < deadline, screen.getvalue()
            threading.Event().wait(0.02)
    assert plain.getvalue() == ""
