"""Fixtures that several kinds of test share."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import openai
import pytest
from hypothesis import settings

from server.llama.fake import FakeBackend, FakeModel
from tests.contract import witness
from tests.http_lead import Lead, serving

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


@pytest.fixture(autouse=True)
def _replies_fit_the_contract() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """Fails the test that makes a server answer anything else than openapi.yaml says."""
    yield
    faults, witness.faults[:] = list(witness.faults), []
    assert not faults, "not in openapi.yaml:\n" + "\n".join(faults)


@pytest.fixture(scope="module")
def lead() -> Iterator[Lead]:
    with serving(FakeBackend(FakeModel(seed=3))) as one:
        yield one


@pytest.fixture
def slow_lead() -> Iterator[Lead]:
    """One slot, a never-ending text, 5 ms a token, and a queue of two."""
    backend = FakeBackend(FakeModel(eog_rate=0.0), n_ctx=4000, n_cells=4000, step_s=0.005)
    with serving(backend, max_queued=2, n_slots=1) as one:
        yield one


@pytest.fixture
def client(lead: Lead) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{lead.url}/v1", api_key="none", max_retries=0) as one:
        yield one
