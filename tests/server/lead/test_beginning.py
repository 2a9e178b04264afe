"""A lead's models are loaded while the rest of it is imported."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from server.errors import StartupError
from server.lead import beginning
from server.lead.beginning import Loading
from server.lead.site import Site
from server.settings import LeadSettings

LATER = ("server.api", "server.engine.engine", "starlette", "uvicorn", "llguidance")
WAIT_S = 10.0


@pytest.mark.parametrize("module", ["server.local.up", "server.lead.beginning"])
def test_serving_modules_are_imported_later(module: str):
    code = f"import sys, {module}; print([name for name in {LATER} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


class Target(SimpleNamespace):
    """A model that is loaded once told to."""

    def __init__(self) -> None:
        super().__init__(description="toy", n_params=0, n_ctx=0, name="toy")
        self.may_be_loaded = threading.Event()
        self.n_closed = 0

    def load(self, *_: object) -> Target:
        assert self.may_be_loaded.wait(WAIT_S)
        return self

    def close(self) -> None:
        self.n_closed += 1


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Target:
    target = Target()

    def alone(*given: Any) -> tuple[Target, None]:
        model: Target = given[3]
        return model, None

    def nothing(*_: object) -> None: ...

    replaced: dict[str, Any] = {"load_target": target.load, "drafting_inside": alone}
    for name, value in (replaced | {"load_embedder": nothing, "load_ranker": nothing}).items():
        monkeypatch.setattr(beginning, name, value)
    return target


def loading() -> Loading:
    site: Any = Site(listener=None, redis_url=None, n_threads=1)  # pyright: ignore[reportArgumentType]
    return Loading(LeadSettings.model_validate({}), site)


def test_models_are_closed_at_the_end(target: Target):
    with closing(loading()) as one:
        target.may_be_loaded.set()
        assert one.models().target is target
        assert target.n_closed == 0
    assert target.n_closed == 1


def test_loading_thread_ends_with_its_work(target: Target):
    """OpenMP keeps workers for a thread that has decoded, beside which the engine's sleep at barriers."""
    target.may_be_loaded.set()
    with closing(loading()) as one:
        one.models()
        for thread in threading.enumerate():
            if thread.name.startswith("duo-loading"):
                thread.join(WAIT_S)
                assert not thread.is_alive()


def test_unwanted_model_is_closed(target: Target):
    one = loading()
    closer = threading.Thread(target=one.close)
    closer.start()
    target.may_be_loaded.set()
    closer.join(WAIT_S)
    assert target.n_closed == 1


def test_abandoned_models_are_left_open(target: Target):
    target.may_be_loaded.set()
    with closing(loading()) as one:
        one.models()
        one.abandon()
    assert target.n_closed == 0


def test_loading_errors_are_raised(monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise StartupError("no such file")

    monkeypatch.setattr(beginning, "load_target", fail)
    with closing(loading()) as one, pytest.raises(StartupError, match="no such file"):
        one.models()
