"""Browsers that join a real lead over its WebSocket and lie, say nothing, or send nonsense."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from tests.process.duo import READY_S, Duo, until

pytestmark = [pytest.mark.model, pytest.mark.redis, pytest.mark.timeout(240)]

TOY = Path(__file__).parents[2] / "server" / "models" / "duo-tiny-q8_0.gguf"
ASKED: dict[str, Any] = {"max_tokens": 96, "ignore_eos": True, "speculative": {"exactness": "width-stable"}}


@pytest.fixture(scope="module")
def duo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Duo]:
    """Yield the toy before anybody drafts. No drafter rests."""
    flags = ("--threads", "1", "--no-gate", "--no-lookup", "--drafters", "0", "--draft-mode", "async")
    with Duo(tmp_path_factory.mktemp("duo"), "up", "--model", str(TOY), *flags) as one:
        one.wait_until_ready()
        yield one


@contextmanager
def lending(duo: Duo, answer: Callable[[dict[str, Any]], list[dict[str, Any]]]) -> Generator[None]:
    """Lend a browser that sends these messages for each request."""
    dial = cast(Callable[..., ClientConnection], connect)
    url = f"{duo.url.replace('http', 'ws', 1)}/lend/socket?name=liar"
    with dial(url, subprotocols=[Subprotocol("duo-lend")]) as browser:
        browser.send(json.dumps({"n_ctx": 4096}))
        reader = threading.Thread(target=_answer_all, args=(browser, answer))
        reader.start()
        until(duo.drafters, READY_S, "the browser did not join")
        yield
    reader.join()
    until(lambda: not duo.drafters(), READY_S, "the browser did not leave")


def _answer_all(browser: ClientConnection, answer: Callable[[dict[str, Any]], list[dict[str, Any]]]) -> None:
    try:
        for text in browser:
            for message in answer(json.loads(text)):
                browser.send(json.dumps(message))
    except ConnectionClosed:
        pass


def lie(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Return wrong guesses, of which the model is said to be sure."""
    if "draft" not in request:
        return []
    return [{"id": request["id"], "said": [[77, 1.0]] * request["draft"]}]


def say_nothing(request: dict[str, Any]) -> list[dict[str, Any]]:
    return []


def fail(request: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"id": request["id"], "failed": "no memory"}] if "draft" in request else []


def said(duo: Duo) -> str:
    return str(duo.ask("Explain lists in Python.", **ASKED)["choices"][0]["message"]["content"])


def n_guesses(duo: Duo) -> int:
    """Return the number of guesses that came from drafters, stale ones too."""
    return sum(sum(one["counts"].values()) for one in duo.drafters())


@pytest.mark.parametrize("answer", [lie, say_nothing, fail])
def test_no_browser_changes_a_text(duo: Duo, answer: Callable[[dict[str, Any]], list[dict[str, Any]]]):
    with lending(duo, answer):
        text = said(duo)
        if answer is lie:
            until(lambda: said(duo) == text and n_guesses(duo), READY_S, "no lie came")
        [seen] = duo.drafters()
        assert (seen["name"], seen["kind"]) == ("liar", "browser")
        assert seen["model"] == "duo-tiny-draft-q8_0.gguf in a browser"
        assert (n_guesses(duo) > 0) == (answer is lie)
    assert said(duo) == text


def test_nonsense_ends_its_drafter_only(duo: Duo):
    def nonsense(request: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"id": request["id"], "said": "all of it"}] if "draft" in request else []

    with lending(duo, nonsense):
        until(lambda: said(duo) and not duo.drafters(), READY_S, "nonsense was taken")
    why = "the browser is disconnected: guesses that nobody asked for"
    until(lambda: why in duo.log.read_text(), READY_S, "the log does not say why")
    until(lambda: len(duo.descendants()) <= 2, READY_S, "a drafter's process is left")
