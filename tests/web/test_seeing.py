"""The chat page: what drafters do, seen, on every screen. One test a promise."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.http_lead import Lead
from tests.web.conftest import watch
from tests.web.scripted import SCREENS, TIMINGS, Reply, Script, ask, asked

pytestmark = pytest.mark.browser


# -- what duo is for

LAPTOP = "laptop-1-00aa11bb"
TOKENS = [
    ("Call", None), (" `pri", LAPTOP), ("nt`", LAPTOP), (":\n\n", None), ("```", "lookup"),
    ("py\n", "lookup"), ("print", "lookup"), ("(1)", None), ("\n```\n", LAPTOP), ("**Do", "draft"),
    ("ne**", None), (".", LAPTOP),
]  # fmt: skip
FAST = {**TIMINGS, "undrafted_per_second": 40.0, "draft_n": 9, "draft_n_accepted": 8}


def test_guesses_and_sources_are_visible(page: Page, lead: Lead):
    Script(page, Reply(TOKENS, timings=FAST))
    page.goto(lead.url)
    reply = asked(page, "how do I print?")
    legend = "Guessed by laptop: 4, the text above: 3, the draft model beside the model: 1 tokens"
    expect(reply.locator(".legend")).to_have_text(legend)
    expect(reply.locator("p").first).to_have_text("Call print:")
    expect(reply.locator("pre")).to_have_text("print(1)")
    expect(reply.locator("strong")).to_have_text("Done")
    marks = [(mark.inner_text(), mark.get_attribute("title")) for mark in reply.locator(".text .guess").all()]
    assert marks == [
        (" ", "guessed by laptop"),
        ("print", "guessed by laptop"),
        ("print", "guessed by the text above"),
        ("Do", "guessed by the draft model beside the model"),
        (".", "guessed by laptop"),
    ]

    def shade(text: str) -> str:
        mark = reply.locator(".text .guess", has_text=text).last
        return str(mark.evaluate("node => getComputedStyle(node).backgroundColor"))

    assert len({shade("print"), shade("Do"), shade(".")}) == 3
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Shade what was guessed").uncheck()
    page.get_by_role("button", name="Done").click()
    assert shade("print") == shade("Do") == "rgba(0, 0, 0, 0)"
    page.reload()
    assert shade("print") == "rgba(0, 0, 0, 0)"


def test_source_keeps_its_known_name(page: Page, lead: Lead):
    drafter: dict[str, Any] = {
        "id": "vm-7-00ff11ee",
        "name": "this machine",
        "model": "small",
        "state": "accepted",
        "counts": {},
    }
    health: dict[str, Any] = {**httpx.get(f"{lead.url}/health").json(), "drafters": [drafter]}
    page.route("**/health", lambda route: route.fulfill(json=health))
    Script(page, Reply((("a", "vm-7-00ff11ee"), ("b", None)), timings=FAST))
    page.goto(lead.url)
    expect(page.locator("#status")).to_have_text("drafting: this machine")
    reply = asked(page, "hello")
    expect(reply.locator(".legend")).to_have_text("Guessed by this machine: 1 token")
    health["drafters"] = [{**drafter, "rests": "the lead is faster without it now"}]
    expect(page.locator("#status")).to_have_text("resting: this machine")
    health["drafters"] += [{**drafter, "id": LAPTOP, "name": "laptop"}]
    expect(page.locator("#status")).to_have_text("drafting: laptop · resting: this machine")
    health["drafters"] = []
    page.reload()
    expect(page.locator("#status")).to_have_text("no drafters")
    expect(reply.locator(".legend")).to_have_text("Guessed by this machine: 1 token")
    expect(reply.get_by_title("guessed by this machine")).to_have_text("a")


def test_speed_gain_is_visible(page: Page, lead: Lead):
    Script(page, Reply(TOKENS, timings=FAST))
    page.goto(lead.url)
    reply = asked(page, "how do I print?")
    expect(reply.locator(".cost")).to_contain_text("2.1 times as fast as without drafts (estimate)")
    expect(reply.locator(".cost")).to_contain_text("8 of 9 guesses were right")


def test_replay_compares_without_drafts(page: Page, lead: Lead):
    slow = {**TIMINGS, "predicted_per_second": 41.0}
    script = Script(page, Reply(TOKENS, timings=FAST), Reply((("Call it", None),), timings=slow))
    page.goto(lead.url)
    reply = asked(page, "how do I print?")
    reply.get_by_role("button", name="Replay without drafts").click()
    columns = reply.locator(".replay .columns > div")
    expect(columns.first).to_contain_text("84 tokens/s")
    expect(columns.last).to_contain_text("3 tokens · 41 tokens/s")
    expect(columns.last).to_contain_text("Call it")
    expect(reply.locator(".verdict")).to_have_text("Not the same text, 2.0 times as fast with drafts")
    first, second = script.asked
    assert second["speculative"] is False
    assert {**second, "speculative": None} == {**first, "speculative": None}  # its seed, too
    assert isinstance(first["seed"], int)


def test_drafter_changes_show_while_streaming(page: Page, slow_lead: Lead):
    health = json.loads(page.request.get(f"{slow_lead.url}/health").text())
    laptop: dict[str, Any] = {
        "id": LAPTOP,
        "name": "laptop",
        "model": "small",
        "state": "accepted",
        "reason": None,
        "counts": {},
    }
    page.route("**/health", lambda route: route.fulfill(json=health))
    page.goto(slow_lead.url)
    ask(page, "go on forever")
    reply = page.locator(".turn.assistant")
    expect(reply.locator(".text")).not_to_be_empty()
    health["drafters"] = [laptop]
    expect(reply.locator(".news")).to_contain_text("laptop drafts now")
    expect(page.get_by_role("alert")).to_contain_text("laptop drafts now")
    expect(page.locator("#status")).to_have_text("drafting: laptop")
    health["drafters"] = []
    expect(reply.locator(".news")).to_contain_text("laptop has left")
    page.get_by_role("button", name="Stop").click()
    slow_lead.until_idle()


def test_text_can_be_selected_while_it_streams(page: Page, slow_lead: Lead):
    page.goto(slow_lead.url)
    ask(page, "go on forever")
    text = page.locator(".turn.assistant .text")
    expect(text).not_to_be_empty()
    selected = page.evaluate("""() => {
      getSelection().selectAllChildren(document.querySelector(".turn.assistant .text p"));
      return getSelection().toString();
    }""")
    length = len(text.inner_text())
    page.wait_for_function(
        "(n) => document.querySelector('.turn.assistant .text').innerText.length > n + 50", arg=length
    )
    assert page.evaluate("() => getSelection().toString()").startswith(selected[:40])
    page.keyboard.press("Escape")
    slow_lead.until_idle()


# -- on every screen


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("screen", SCREENS)
def test_page_passes_accessibility_checks(
    browser: Browser, lead: Lead, problems: list[str], screen: str, colours: str
):
    width, height = SCREENS[screen]
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if colours == "dark" else "light",
        bypass_csp=True,
    )
    page = context.new_page()
    watch(page, problems)
    Script(page, Reply(TOKENS, timings=FAST, thoughts="hm"), Reply((), error="no"))
    page.goto(lead.url)
    asked(page, "one")
    ask(page, "two")
    expect(page.locator(".turn.failed")).to_be_visible()
    found = [Axe().run(page)]
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    page.get_by_role("button", name="Settings").click()
    found.append(Axe().run(page))
    page.get_by_role("button", name="Done").click()
    if screen == "phone":
        page.get_by_role("button", name="Conversations").click()
        expect(page.get_by_role("button", name="New conversation")).to_be_focused()
        found.append(Axe().run(page))
    context.close()
    assert [one.generate_report() for one in found if one.violations_count] == []
    assert problems == []


def test_a_phone_and_its_keyboard_are_enough(browser: Browser, lead: Lead):
    """Go from an empty page to a second conversation, found again after a reload, by keys alone."""
    context = browser.new_context(viewport={"width": 390, "height": 844})
    page = context.new_page()
    Script(page)
    page.goto(lead.url)
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    page.keyboard.type("hello")
    page.keyboard.press("Enter")
    expect(page.locator(".turn.assistant .text")).to_have_text("fine")
    page.keyboard.press("Control+Shift+O")
    expect(page.locator(".turn")).to_have_count(0)
    page.keyboard.press("Control+k")
    page.keyboard.type("hel")
    expect(page.locator("#list .open")).to_have_text(["hello"])
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator(".turn.user .text")).to_have_text("hello")
    page.reload()
    expect(page.locator(".turn.user .text")).to_have_text("hello")
    context.close()


def test_the_page_asks_nobody_else(page: Page, lead: Lead):
    asked_for: list[str] = []
    page.on("request", lambda request: asked_for.append(request.url))
    page.goto(lead.url)
    expect(page.locator("#model")).to_contain_text("toy")
    assert [url for url in asked_for if not url.startswith((lead.url, "data:"))] == []
