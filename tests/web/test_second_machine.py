"""A drafter that comes and goes while a reply streams, seen wherever duo shows its drafters."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, Route, expect

from tests.process.duo import Duo, joined, printed, run, until
from tests.web.scripted import ask

pytestmark = [pytest.mark.browser, pytest.mark.model, pytest.mark.redis, pytest.mark.timeout(240)]

JOINS_MS = 60_000  # a drafter loads its model and joins in a tenth of it on an idle machine


@pytest.fixture
def duo(tmp_path: Path) -> Iterator[Duo]:
    """Yield what make up starts, before anybody drafts.

    No drafter rests.
    """
    flags = ("--threads", "1", "--no-gate", "--no-lookup", "--drafters", "0")
    with Duo(tmp_path, "up", *flags) as one:
        one.wait_until_ready()
        yield one


def endless(route: Route) -> None:
    """Change the page's request so that the reply does not end by itself."""
    body = json.loads(route.request.post_data or "")
    body |= {"ignore_eos": True, "context_shift": True, "temperature": 0}
    route.continue_(post_data=json.dumps(body))


def counted(duo: Duo, metric: str) -> bool:
    """Return True if this metric is above zero."""
    return bool(re.search(rf"^duo:{metric} [1-9]", httpx.get(f"{duo.url}/metrics").text, re.MULTILINE))


def test_second_machine_comes_and_goes(duo: Duo, page: Page, tmp_path: Path):
    page.route("**/v1/chat/completions", endless)
    page.goto(duo.url)
    status = page.context.new_page()
    status.goto(f"{duo.url}/status")
    ask(page, "Count from one to one million in words.")
    reply = page.locator(".turn.assistant .text")
    expect(reply).not_to_be_empty()
    news = page.get_by_role("list", name="Meanwhile")
    with joined(printed(duo), tmp_path):
        expect(news.get_by_text("second drafts now")).to_be_visible(timeout=JOINS_MS)
        expect(reply.get_by_title("guessed by second").first).to_be_attached(timeout=JOINS_MS)
        expect(status.locator("#drafters")).to_contain_text("second")
        top = run("top", "--url", duo.url, "--once", "--interval", "0.5").stdout
        assert re.search(r"^ *second .* [1-9]\d* ", top, re.MULTILINE), top
        assert counted(duo, r'drafter_messages_total\{drafter="second-[^}]*outcome="fresh"\}')
    expect(news.get_by_text("second has left")).to_be_visible(timeout=JOINS_MS)
    expect(status.locator("#drafters")).not_to_contain_text("second")
    said = reply.inner_text()
    until(lambda: len(reply.inner_text()) > len(said), JOINS_MS / 1e3, "the reply did not go on")
    page.keyboard.press("Escape")
    expect(page.locator(".ended")).to_contain_text("You stopped this reply.")
    expect(page.locator(".legend")).to_contain_text("second")
    accepted = r'drafter_tokens_total\{drafter="second-[^}]*outcome="accepted"\}'
    until(lambda: counted(duo, accepted), JOINS_MS / 1e3, "no accepted token was counted")
