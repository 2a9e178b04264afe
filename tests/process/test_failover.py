"""A lead and a drafter that find Redis through a sentinel: the master dies, and the drafter guesses again."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.process.duo import Duo, joined, until
from tests.process.sentinels import SOON_S, Watched

pytestmark = [pytest.mark.model, pytest.mark.redis, pytest.mark.timeout(240)]

ASKED: dict[str, Any] = {
    "content": "Explain what a list is.",
    "max_tokens": 60,
    "speculative": {"exactness": "width-stable"},  # every bit, so that a near-tie is no excuse
}


@pytest.fixture
def watched(tmp_path: Path) -> Generator[Watched]:
    with ExitStack() as ending:
        yield Watched(tmp_path, ending)


def said(duo: Duo) -> str:
    return str(duo.ask(**ASKED)["choices"][0]["message"]["content"])


def accepted(duo: Duo) -> int:
    return sum(one["counts"].get("accepted", 0) for one in duo.drafters())


def test_no_text_changes_when_the_master_dies(watched: Watched, tmp_path: Path):
    flags = ("--threads", "1", "--no-gate", "--no-lookup", "--redis", watched.url("lead"))
    with Duo(tmp_path, "serve", *flags) as duo:
        duo.wait_until_ready()
        alone = said(duo)
        with joined(["draft", "--redis", watched.url("drafter")], tmp_path):
            until(lambda: len(duo.drafters()) == 1, SOON_S, "the drafter did not join")
            until(lambda: said(duo) == alone and accepted(duo), SOON_S, "no guess was accepted")
            watched.kill_master()
            until(lambda: not duo.drafters(), SOON_S, "the lead did not miss it")
            assert said(duo) == alone
            until(lambda: len(duo.drafters()) == 1, SOON_S, "it did not come back")
            assert watched.role_of(watched.ports[1]) == "master"
            before = accepted(duo)
            until(lambda: said(duo) == alone and accepted(duo) > before, SOON_S, "no guess is accepted")
