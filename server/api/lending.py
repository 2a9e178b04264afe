"""Drafting in browsers for the lead: the number of browsers, and the drafter process of each."""

from __future__ import annotations

import asyncio
import hashlib
import re
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

# Maximum browsers that draft at once, each with a process beside the lead. Half: room for
# a phone and a tablet only; twice: twice the memory
MAX_LENDING = 4
# Maximum messages of a browser in a second: ten times what the small draft model makes here. Half: a machine
# five times as fast would come near; twice: a flood of messages takes more of a core
MAX_PER_SECOND = 1000
GOODBYE_S = 3.0  # seconds for a drafter to say goodbye to the lead and end. Twice: a longer shutdown
NAME = re.compile(r"[^\w.-]+")  # characters that a drafter's name cannot have
MAX_NAME = 32  # characters of a drafter's name. Half: no room for two words


class BrowserLender(NamedTuple):
    """A browser in which a draft model runs, as described to its drafter process at the start."""

    name: str  # name shown to people
    salt: str  # salt of the sessions that the browser may read
    is_elsewhere: bool  # the browser runs on another machine than the lead


@dataclass(slots=True)
class Lending:
    """The draft model for browsers, and the number of browsers that draft now."""

    model: Path
    start: Callable[[BrowserLender], Awaitable[Process]]  # starts a drafter: messages on its stdin and stdout
    most: int = MAX_LENDING
    per_second: int = MAX_PER_SECOND  # messages of each browser
    address: Callable[[], str] = str  # returns the server's address in its network; empty: it has none
    n_now: int = 0
    _digest: str = field(default="", init=False)

    async def digest(self) -> str:
        """Return the SHA-256 of the model's file in hex. Browsers recognise their copy of the file by it."""
        if not self._digest:
            self._digest = await asyncio.to_thread(_digest_of, self.model)
        return self._digest

    @property
    def is_full(self) -> bool:
        return self.n_now >= self.most

    @contextmanager
    def place(self) -> Generator[None]:
        """Count one browser as drafting within the block."""
        self.n_now += 1
        try:
            yield
        finally:
            self.n_now -= 1


def named(text: str) -> str:
    """Convert any text to a valid drafter's name."""
    return NAME.sub("-", text)[:MAX_NAME].strip("-") or "browser"


async def end(process: Process) -> None:
    """Close a drafter's standard input, so that it ends; kill it if it has not ended after GOODBYE_S."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(GOODBYE_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
