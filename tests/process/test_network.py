"""Drafters behind a bad network: they join, lag, are cut off and come back, and no text changes."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.process.duo import Duo, joined, printed, until
from tests.process.link import Link

pytestmark = [pytest.mark.model, pytest.mark.redis, pytest.mark.timeout(240)]

SOON_S = 60.0  # a drafter joins or is missed in a tenth of it on an idle machine
ASKED: dict[str, Any] = {
    "content": "Explain what a list is.",
    "max_tokens": 120,
    "speculative": {"exactness": "width-stable"},  # every bit, so that a near-tie is no excuse
}


@pytest.fixture
def duo(tmp_path: Path) -> Generator[Duo]:
    flags = ("--threads", "1", "--no-gate", "--no-lookup", "--drafters", "0", "--redis-listen", "127.0.0.1")
    with Duo(tmp_path, "up", *flags) as one:
        one.wait_until_ready()
        yield one


def said(duo: Duo) -> str:
    return str(duo.ask(**ASKED)["choices"][0]["message"]["content"])


def accepted(duo: Duo) -> int:
    return sum(one["counts"].get("accepted", 0) for one in duo.drafters())


def test_texts_survive_latency_loss_a_cut_and_a_heal(duo: Duo, tmp_path: Path):
    command = printed(duo)
    [port] = re.findall(r"@127\.0\.0\.1:(\d+)", command[2])
    alone = said(duo)
    with ExitStack() as stack:
        far = stack.enter_context(closing(Link("127.0.0.1", int(port), latency_s=0.2, loss=0.05)))
        near = stack.enter_context(closing(Link("127.0.0.1", int(port))))
        for name, link in (("far", far), ("near", near)):
            folder = tmp_path / name
            folder.mkdir()
            through = [argument.replace(f":{port}", f":{link.port}") for argument in command]
            stack.enter_context(joined(through, folder))
        until(lambda: len(duo.drafters()) == 2, SOON_S, "the drafters did not join")
        until(lambda: said(duo) == alone and accepted(duo), SOON_S, "no guess was accepted")
        for link in (far, near):
            link.cut()
        until(lambda: not duo.drafters(), SOON_S, "the lead did not miss them")
        assert said(duo) == alone
        for link in (far, near):
            link.heal()
        until(lambda: len(duo.drafters()) == 2, SOON_S, "they did not come back")
        assert said(duo) == alone
    until(lambda: not duo.drafters(), SOON_S, "the lead did not miss them")
    assert said(duo) == alone
