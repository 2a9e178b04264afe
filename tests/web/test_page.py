"""The chat page in a real browser, against the live server over the toy model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from server.api.access import Access
from server.api.middleware import Edge
from server.lead.listening import Door
from tests.fake_backend import FakeBackend, FakeModel
from tests.http_lead import Lead, serving

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    yield page
    page.close()
    assert problems == []


def ask(page: Page, text: str) -> None:
    page.get_by_label("Message").fill(text)
    page.get_by_label("Message").press("Enter")


def test_a_conversation_is_streamed_and_what_it_cost_is_shown(page: Page, lead: Lead):
    page.goto(lead.url)
    expect(page.locator("#model")).to_contain_text("toy")
    expect(page.locator("#status")).to_contain_text("refused: d (vocabulary sizes differ)")
    ask(page, "hello <b>there</b>")
    expect(page.locator(".turn.user")).to_have_text("hello <b>there</b>")
    expect(page.locator(".cost")).to_contain_text("prompt tokens reused", timeout=20_000)
    assert page.locator(".turn.assistant").inner_text().strip()
    ask(page, "and then?")
    expect(page.locator(".cost")).to_have_count(2, timeout=20_000)
    page.get_by_role("button", name="New conversation").click()
    expect(page.locator(".turn")).to_have_count(0)


def test_a_reply_can_be_stopped(page: Page, slow_lead: Lead):
    page.goto(slow_lead.url)
    ask(page, "go on forever")
    expect(page.locator(".turn.assistant")).not_to_be_empty()
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    slow_lead.until_idle()


def test_what_is_typed_is_evaluated_before_it_is_sent(page: Page, lead: Lead):
    page.goto(lead.url)
    with page.expect_response("**/v1/precompute") as typed:
        page.get_by_label("Message").press_sequentially("a long question that takes a while to type")
    assert typed.value.json()["completed"]
    page.get_by_label("Message").press("Enter")
    expect(page.locator(".cost")).to_contain_text("prompt tokens reused", timeout=20_000)
    reused = int(page.locator(".cost").inner_text().split(" of ")[0].split(" ")[-1])
    assert reused > len("a long question that takes a while to type")
    lead.until_idle()


TOKENS = [
    ("Call", None), (" `pri", "drafter-1"), ("nt`", "drafter-1"), (":\n\n", None), ("```", "lookup"),
    ("py\n", "lookup"), ("print", "lookup"), ("(1)", None), ("\n```\n", "drafter-1"), ("**Do", "drafter-2"),
    ("ne**", None), (".", "drafter-1"),
]  # fmt: skip


def streamed(tokens: Sequence[tuple[str, str | None]]) -> str:
    """A reply, two tokens to a chunk."""
    events: list[str] = []
    for i in range(0, len(tokens), 2):
        told = tokens[i : i + 2]
        choice = {
            "delta": {"content": "".join(text for text, _ in told)},
            "sources": [{"text": text, "source": source} for text, source in told],
        }
        events.append(json.dumps({"choices": [choice]}))
    timings = {"predicted_n": len(tokens), "cache_n": 0, "prompt_n": 5}
    events.append(json.dumps({"choices": [{"delta": {}}], "timings": timings}))
    return "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"])


def test_one_sees_what_was_guessed_and_by_whom(page: Page, lead: Lead):
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(content_type="text/event-stream", body=streamed(TOKENS)),
    )
    page.goto(lead.url)
    ask(page, "how do I print?")
    reply = page.locator(".turn.assistant")
    expect(page.locator(".cost")).to_contain_text("guessed by drafter-1 4, lookup 3, drafter-2 1")
    expect(reply.locator("p").first).to_have_text("Call print:")
    expect(reply.locator("pre")).to_have_text("print(1)")
    expect(reply.locator("strong")).to_have_text("Done")
    marks = [(mark.inner_text(), mark.get_attribute("title")) for mark in reply.locator(".guess").all()]
    assert marks == [
        (" ", "guessed by drafter-1"),
        ("print", "guessed by drafter-1"),
        ("print", "guessed by lookup"),
        ("\n", "guessed by drafter-1"),
        ("Do", "guessed by drafter-2"),
        (".", "guessed by drafter-1"),
    ]

    def shade(text: str) -> str:
        mark = reply.locator(".guess", has_text=text).last
        return str(mark.evaluate("node => getComputedStyle(node).backgroundColor"))

    assert len({shade("print"), shade("Do"), shade(".")}) == 3
    page.get_by_text("Settings").click()
    page.get_by_label("Show what was guessed").uncheck()
    assert shade("print") == shade("Do") == "rgba(0, 0, 0, 0)"
    page.reload()
    expect(page.locator("#guesses")).not_to_be_checked()


def test_an_error_is_told(page: Page, lead: Lead):
    page.goto(lead.url)
    ask(page, "x" * 5000)
    expect(page.locator(".turn.error")).to_contain_text("maximum context length")


def test_a_server_that_wants_a_key_gets_it(page: Page):
    door = Door(Edge(access=Access(["sk-right"])), None, 0)
    with serving(FakeBackend(FakeModel(seed=3)), door=door) as lead:
        page.goto(lead.url)
        expect(page.locator("#status")).to_contain_text("wants an API key")
        expect(page.get_by_label("API key")).to_be_visible()
        page.get_by_label("API key").fill("sk-wrong")
        ask(page, "hello")
        expect(page.locator(".turn.error")).to_contain_text("wants an API key")
        page.get_by_label("API key").fill("sk-right")
        page.get_by_label("API key").press("Enter")
        expect(page.locator("#model")).to_contain_text("toy")
        expect(page.locator("#status")).to_contain_text("refused: d")
        ask(page, "hello again")
        expect(page.locator(".cost")).to_contain_text("prompt tokens reused", timeout=20_000)
        page.reload()
        expect(page.locator("#model")).to_contain_text("toy")
        expect(page.get_by_label("API key")).to_have_value("sk-right")
        lead.until_idle()
