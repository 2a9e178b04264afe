"""Fixtures that several kinds of test share."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import openai
import pytest
import trustme
from hypothesis import settings

from server.llama.fake import FakeBackend, FakeModel
from tests import leaks
from tests.contract import witness
from tests.http_lead import Lead, serving
from tests.support import ENDLESS

settings.register_profile("duo", deadline=None)  # tests are not timed: machines are shared
settings.load_profile("duo")

SLOWER = ("redis", "model", "browser")


def pytest_unconfigure() -> None:
    """llama_cpp leaves two files open, and says so at the very end to whoever turns warnings on."""
    utils = sys.modules.get("llama_cpp._utils")
    for name in ("outnull_file", "errnull_file"):
        if utils is not None and hasattr(utils, name):
            getattr(utils, name).close()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Fast tests first, then those that need a real Redis, the bundled models, a browser."""
    items.sort(key=_slowness)


def _slowness(item: pytest.Item) -> int:
    marks = [mark.name for mark in item.iter_markers()]
    return max((SLOWER.index(name) + 1 for name in marks if name in SLOWER), default=0)


@pytest.fixture(scope="session", autouse=True)
def _one_authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """An HTTP client reads the certificates that it trusts when it is made: one here, else 150 in 20 ms."""
    file = tmp_path_factory.mktemp("trusted") / "authority.pem"
    trustme.CA().cert_pem.write_to_path(str(file))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(file))
        yield


@pytest.fixture(autouse=True)
def _replies_fit_the_contract() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """Fails the test that makes a server answer anything else than openapi.yaml says."""
    yield
    faults, witness.faults[:] = list(witness.faults), []
    assert not faults, "not in openapi.yaml:\n" + "\n".join(faults)


@pytest.fixture(autouse=True)
def _nothing_is_left_open() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """Fails the test that leaves a socket open or a process running, and no other test."""
    with leaks.watched() as left:
        yield
    assert not left, "left open:\n" + "\n".join(left)


@pytest.fixture(scope="module")
def lead() -> Iterator[Lead]:
    with serving(FakeBackend(FakeModel(seed=3))) as one:
        yield one


@pytest.fixture
def slow_lead() -> Iterator[Lead]:
    """One slot, a never-ending text, 5 ms a token, and a queue of two."""
    backend = FakeBackend(FakeModel(eog_rate=0.0), n_ctx=ENDLESS, n_cells=ENDLESS, step_s=0.005)
    with serving(backend, max_queued=2, n_slots=1) as one:
        yield one


@pytest.fixture
def still_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes by what is slept and by nothing else: a decode of a FakeBackend takes what it says."""
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
