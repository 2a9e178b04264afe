"""Fixtures for all tests: servers over the toy model, and what every test is checked for."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator

import openai
import pytest
import trustme
from hypothesis import settings

from drafters.drafter_settings import BUNDLED_MODEL as DRAFT
from server import stop_signals
from server.settings import BUNDLED_MODEL as TARGET
from tests import leaks
from tests.contract import witness
from tests.fake_backend import FakeBackend, FakeModel
from tests.http_lead import Lead, serving
from tests.support import ENDLESS

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # llama.cpp's threads wait without using up a core
os.environ.setdefault("DUO_FLASH_ATTN", "off")  # else near-ties would depend on this CPU's choice
os.environ.setdefault("DUO_MODEL", str(TARGET))  # else the default model would be fetched
os.environ.setdefault("DUO_DRAFTER_MODEL", str(DRAFT))
settings.register_profile("duo", deadline=None)  # no test fails because the machine is busy
settings.load_profile("duo")

SLOWER = ("redis", "model", "browser", "real")
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LOGGERS = ("duo", "duo.llama", "uvicorn")  # that server.terminal.console.log_to changes


def pytest_unconfigure() -> None:
    """Close the two files that llama_cpp leaves open: the interpreter would warn of them at its end."""
    utils = sys.modules.get("llama_cpp._utils")
    for name in ("outnull_file", "errnull_file"):
        if utils is not None and hasattr(utils, name):
            getattr(utils, name).close()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order tests: unmarked ones, then those marked redis, model, browser and real."""
    items.sort(key=_slowness)


def _slowness(item: pytest.Item) -> int:
    marks = [mark.name for mark in item.iter_markers()]
    return max((SLOWER.index(name) + 1 for name in marks if name in SLOWER), default=0)


@pytest.fixture(scope="session", autouse=True)
def _one_authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """Trust one certificate only. Each new HTTP client reads all trusted ones: 20 ms for the usual 150."""
    file = tmp_path_factory.mktemp("trusted") / "authority.pem"
    trustme.CA().cert_pem.write_to_path(str(file))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(file))
        yield


@pytest.fixture(autouse=True)
def _replies_fit_the_contract() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """Fail the test if a server answered something that openapi.yaml does not allow."""
    yield
    faults, witness.faults[:] = list(witness.faults), []
    assert not faults, "not in openapi.yaml:\n" + "\n".join(faults)


@pytest.fixture(autouse=True)
def _nothing_is_left_open() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """Close the sockets and kill the processes that the test left, and fail it for them."""
    with leaks.watched() as left:
        yield
    assert not left, "left open:\n" + "\n".join(left)


@pytest.fixture(autouse=True)
def _loggers_are_as_before() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """Restore loggers: a command that the test ran in this process logs to its own console."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [(one.level, list(one.handlers), one.propagate) for one in loggers]
    yield
    for one, (level, handlers, propagate) in zip(loggers, before, strict=True):
        one.setLevel(level)
        one.handlers, one.propagate = handlers, propagate


@pytest.fixture(autouse=True)
def _signals_are_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """Restore the handlers of signals: a command that the test ran here has its own."""
    monkeypatch.setattr(stop_signals, "_requested", None)
    before = [(number, signal.getsignal(number)) for number in SIGNALS]
    yield
    for number, handler in before:
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def lead() -> Iterator[Lead]:
    with serving(FakeBackend(FakeModel(seed=3))) as one:
        yield one


@pytest.fixture
def slow_lead() -> Iterator[Lead]:
    """Yield a lead with one slot and a queue of two requests; replies never end, 5 ms a token."""
    backend = FakeBackend(FakeModel(eog_rate=0.0), n_ctx=ENDLESS, n_cells=ENDLESS, step_s=0.005)
    with serving(backend, max_queued=2, n_slots=1) as one:
        yield one


@pytest.fixture
def still_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let time.perf_counter() advance only in time.sleep(), so that decodes take exact times."""
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr("time.sleep", sleep)
    monkeypatch.setattr("time.perf_counter", lambda: now)


@pytest.fixture
def client(lead: Lead) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{lead.url}/v1", api_key="none", max_retries=0) as one:
        yield one
