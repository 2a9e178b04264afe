"""A toy model whose steps a test allows one by one, so that what it looks at cannot be over before."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from server.engine.thread import Command, EngineThread
from server.llama.backend import Batch, Logits
from tests.fake_backend import FakeBackend
from tests.support import until

ENOUGH = 1 << 16  # steps: more than any test takes


@dataclass(slots=True)
class Gated(FakeBackend):
    """Decodes one batch for each permit, and freely once its context has ended.

    n_begun: decodes that began, whether they have their permit or not.
    """

    permits: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    n_begun: int = 0

    def decode(self, batch: Batch) -> Logits:
        self.n_begun += 1
        assert self.permits.acquire(timeout=30), "no permit came"
        return FakeBackend.decode(self, batch)

    def __enter__(self) -> Gated:
        return self

    def __exit__(self, *_: object) -> None:
        self.allow(ENOUGH)

    def allow(self, n: int) -> None:
        """Let n more steps finish."""
        for _ in range(n):
            self.permits.release()

    def until_step(self, n: int) -> None:
        """Wait until the n-th step has begun; it finishes when it is allowed to."""
        until(lambda: self.n_begun >= n, f"step {n} never began")


@contextmanager
def at_command(thread: EngineThread, then: Callable[[], object]) -> Generator[None]:
    """Call then() after each command that is given to the engine's thread."""
    command = thread.command

    def watched(one: Command) -> None:
        command(one)
        then()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thread, "command", watched)
        yield
