"""A drafter that asks the model in a browser: what it sends, and takes from a browser that may lie."""

from __future__ import annotations

import io
import json
import os
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from drafters.browser_link import MAX_ADDED, BrowserLink
from drafters.engine_client import Reply
from drafters.engine_drafter import PATHS, EngineDrafter
from server.errors import StartupError
from server.speculation.wire.messages import Close
from tests.drafters.scene import PROMPT, Scene, commit, open_
from tests.fake_backend import FakeVocabulary

TEXT = b" and so it goes on and on, as far as anybody asks, and a little further than that."


class Browser:
    """The other end of the link: reads requests, and says what a test tells it to."""

    def __init__(self, *, n_ctx: int = 4096, salt: str = "") -> None:
        from_browser, self._out = os.pipe()
        to_browser, out = os.pipe()
        self._lines = os.fdopen(to_browser, "rb")
        self._theirs = os.fdopen(from_browser, "rb"), out
        self.say(n_ctx=n_ctx)
        self.gone = threading.Event()
        self.link = BrowserLink(self._theirs[0], out, salt=salt)
        self._reader = threading.Thread(target=self.link.listen, args=(self.gone.set,))
        self._reader.start()

    def say(self, **message: Any) -> None:
        self.say_line(json.dumps(message).encode())

    def say_line(self, line: bytes) -> None:
        os.write(self._out, line + b"\n")

    def next(self) -> dict[str, Any]:
        """Return the next message to the browser."""
        return json.loads(self._lines.readline())

    def leave(self) -> None:
        os.close(self._out)
        self._reader.join()
        self._lines.close()
        self._theirs[0].close()
        os.close(self._theirs[1])


@contextmanager
def browser_of(**about: Any) -> Generator[Browser]:
    browser = Browser(**about)
    try:
        yield browser
    finally:
        browser.leave()


def ask(browser: Browser, prompt: Sequence[int], n_tokens: int = 8) -> tuple[Reply, threading.Semaphore]:
    """Return the reply, and what is released whenever it has grown."""
    grown = threading.Semaphore(0)
    return browser.link.ask(prompt, n_tokens, salt="", ready=grown.release), grown


def turn_until(scene: Scene, reached: Callable[[], bool]) -> None:
    scene.settle()
    while not reached():
        scene.worker.turn()
        scene.settle()


def test_requests_send_only_differences():
    with browser_of() as browser:
        _, grown = ask(browser, [1, 2, 3])
        assert browser.next() == {"id": 1, "keep": 0, "add": [1, 2, 3], "draft": 8}
        browser.say(id=1, said=[[4, 0.9], [5, 0.8]])
        grown.acquire()
        ask(browser, [1, 2, 3, 4, 9])
        assert browser.next() == {"id": 2, "keep": 4, "add": [9], "draft": 8}


def test_long_texts_come_in_parts():
    with browser_of(n_ctx=1 << 14) as browser:
        ask(browser, range(MAX_ADDED + 3))
        assert browser.next() == {"id": 1, "keep": 0, "add": list(range(MAX_ADDED))}
        rest = [MAX_ADDED, MAX_ADDED + 1, MAX_ADDED + 2]
        assert browser.next() == {"id": 1, "keep": MAX_ADDED, "add": rest, "draft": 8}


def test_guesses_are_drafted_and_continued():
    with browser_of() as browser:
        scene = Scene(drafter=EngineDrafter(browser.link, FakeVocabulary()))
        scene.send(open_(max_ahead=6))
        request = browser.next()
        assert (request["add"], request["draft"]) == (list(PROMPT), 6 * PATHS)
        browser.say(id=1, said=[[token, 0.99] for token in TEXT[:8]])
        turn_until(scene, lambda: len(scene.drafted()) == 6)
        scene.send(commit(*TEXT[:2]))
        turn_until(scene, lambda: len(scene.drafted()) == 8)
        assert bytes(scene.drafted()) == TEXT[:8]
        scene.send(commit(*TEXT[:3], ord("!")))
        turn_until(scene, lambda: browser.next() == {"stop": 1})
        assert browser.next() == {
            "id": 2,
            "keep": len(PROMPT) + 3,
            "add": [ord("!")],
            "draft": 6 * PATHS,
        }


def test_a_closed_session_stops_guesses():
    with browser_of() as browser:
        scene = Scene(drafter=EngineDrafter(browser.link, FakeVocabulary()))
        scene.send(open_())
        browser.next()
        scene.send(Close("lead", 1, False))
        assert browser.next() == {"stop": 1}


def test_late_guesses_are_ignored():
    with browser_of() as browser:
        first, _ = ask(browser, [1, 2])
        second, grown = ask(browser, [1, 3])
        browser.say(id=1, said=[[9, 0.9]])
        browser.say(id=2, said=[[4, 0.9]])
        grown.acquire()
        assert not first.said
        assert [one.token for one in second.said] == [4]


def test_end_of_text_is_told():
    with browser_of() as browser:
        reply, grown = ask(browser, [1])
        browser.say(id=1, end=True)
        grown.acquire()
        assert reply.is_done
        assert reply.said[-1].ends_text


def test_failure_is_an_error():
    with browser_of() as browser:
        reply, grown = ask(browser, [1])
        browser.say(id=1, failed="out of memory")
        grown.acquire()
        assert (reply.is_done, reply.error) == (True, "out of memory")


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b'{"id":1,"said":[]}',
        b'{"id":1,"said":7}',
        b'{"id":1,"said":[[1]]}',
        b'{"id":1,"said":[["1",0.5]]}',
        b'{"id":1,"said":[[-1,0.5]]}',
        b'{"id":1,"said":[[1,0]]}',
        b'{"id":1,"said":[[1,1.5]]}',
        b'{"id":1,"said":[[1,0.5],[2,0.5],[3,0.5]]}',
        b'{"id":1,"said":[' + b"[1,0.5]," * 1000,
    ],
    ids=["empty", "list", "none", "number", "single", "text", "negative", "zero", "above", "more", "long"],
)
def test_invalid_line_ends_the_drafter(line: bytes):
    with browser_of() as browser:
        ask(browser, [1], n_tokens=2)
        browser.say_line(line)
        assert browser.gone.wait(60)


def test_guesses_after_the_end_are_refused():
    with browser_of() as browser:
        ask(browser, [1])
        browser.say(id=1, end=False)
        browser.say(id=1, said=[[1, 0.5]])
        assert browser.gone.wait(60)


@pytest.mark.parametrize("hello", ["", "{}", '{"n_ctx":null}', '{"n_ctx":"long"}', '{"n_ctx":1}', "4096"])
def test_context_must_be_told(hello: str):
    with pytest.raises(StartupError, match="context"):
        BrowserLink(io.BytesIO(hello.encode()), out=-1)


def test_others_sessions_are_not_shown():
    with browser_of(salt="mine") as browser:
        assert browser.link.refusal(10, "mine") is None
        for salt in ("", "other"):
            assert "may not read it" in str(browser.link.refusal(10, salt))
        scene = Scene(drafter=EngineDrafter(browser.link, FakeVocabulary()))
        scene.send(open_(salt="other"), open_(session=2, salt="mine"))
        assert browser.next()["id"] == 1
        assert len(scene.drafter._asked) == 1  # pyright: ignore


def test_texts_beyond_its_context_are_refused():
    with browser_of(n_ctx=64) as browser:
        assert browser.link.refusal(63, "") is None
        assert "longer than the browser's context of 64" in str(browser.link.refusal(64, ""))
        ask(browser, [1] * 60, n_tokens=8)
        assert browser.next()["draft"] == 4


def test_leaving_is_noticed():
    browser = Browser()
    browser.leave()
    assert browser.gone.is_set()
