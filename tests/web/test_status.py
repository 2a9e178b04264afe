"""/status in a real browser: what the server does, in words, as it changes."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from server.api.access import Access
from server.api.middleware import Edge
from server.lead.listening import ClientPolicy
from tests.fake_backend import FakeBackend, FakeModel
from tests.http_lead import Lead, serving
from tests.web.conftest import watch
from tests.web.scripted import SCREENS

pytestmark = pytest.mark.browser
COUNTS = {"drafted": 10, "accepted": 8, "fresh": 3, "stale": 1}
LAPTOP = {
    "id": "laptop-1-00aa11bb",
    "name": "laptop",
    "kind": "engine",
    "model": "small",
    "state": "accepted",
    "reason": None,
    "counts": COUNTS,
}
GATE = {"tokens_per_second": 40.0, "step_ms": {"1": 5.0, "4": 6.0}, "width": 0, "steady_ms": {}}


def value(page: Page, name: str) -> Any:
    return page.locator("dl div", has=page.get_by_text(name, exact=True)).locator("dd")


def told(page: Page, lead: Lead, **changed: Any) -> dict[str, Any]:
    """Return the answer of /health from now on, which the test may change."""
    health = {**httpx.get(f"{lead.url}/health").json(), **changed}
    page.route("**/health", lambda route: route.fulfill(json=health))
    return health


def test_status_is_one_click_away(page: Page, lead: Lead):
    page.goto(lead.url)
    page.get_by_role("link", name="Status").click()
    expect(page.locator("#state")).to_have_text("the server is well")
    expect(value(page, "Model")).to_have_text("toy")
    expect(value(page, "Replies")).to_have_text("0 of 4 places taken")
    expect(value(page, "Waiting")).to_have_text("0")
    expect(value(page, "In memory")).to_contain_text("0 conversations")


def test_numbers_and_plots_move(slow_lead: Lead, page: Page):
    page.goto(f"{slow_lead.url}/status")
    expect(page.locator("#plots figure")).to_have_count(3)
    endless = {"prompt": "a", "stream": True, "max_tokens": 1_000_000}
    with httpx.stream("POST", f"{slow_lead.url}/v1/completions", json=endless) as reply:
        lines = reply.iter_lines()  # kept: without it the stream is closed
        next(lines)
        expect(value(page, "Replies")).to_have_text("1 of 1 places taken")
        expect(value(page, "Tokens per second")).to_have_text(re.compile("^[1-9]"))
        expect(page.get_by_role("img", name="Replies at once: 1.0 now, at most 1.0")).to_be_visible()
    slow_lead.until_idle()
    expect(value(page, "Replies")).to_have_text("0 of 1 places taken")
    points = page.locator("#plots path").first.get_attribute("d") or ""
    assert points.count("L") >= 1


def test_drafters_show_names_and_outcomes(page: Page, lead: Lead):
    health = told(page, lead, drafters=[])
    page.goto(f"{lead.url}/status")
    expect(page.locator("#drafters")).to_contain_text("One joins with the command that duo up prints.")
    health["drafters"] = [LAPTOP]
    expect(page.locator("#drafters tbody tr")).to_contain_text("laptop")
    expect(page.locator("#drafters tbody tr")).to_contain_text("8 of 10 (80 %)")
    expect(page.locator("#drafters tbody tr")).to_contain_text(
        "3 in time, 1 wrong, too late or for a closed conversation"
    )
    state = page.locator("#drafters tbody td").nth(3)
    expect(page.locator("#drafters tbody td").nth(1)).to_have_text("engine")
    expect(state).to_have_text("drafts")
    health["drafters"] = [{**LAPTOP, "rests": "the lead is faster without it now"}]
    expect(state).to_have_text("rests: the lead is faster without it now")
    health["drafters"] = [{**LAPTOP, "state": "refused", "reason": "vocabulary sizes differ"}]
    expect(page.locator("#drafters tbody tr")).to_contain_text("refused: vocabulary sizes differ")
    health["drafters"] = []
    expect(page.locator("#drafters tbody tr")).to_have_count(0)


def test_unchecked_plot_has_no_value(page: Page, lead: Lead):
    told(page, lead)
    body = {"tokens": "duo:draft_tokens_total 0.0\nduo:draft_tokens_accepted_total 0.0"}
    kept = 'duo:cache_conversations{tier="memory"} 1.0\nduo:cache_conversations{tier="disk"} 2.0\n'
    page.route("**/metrics", lambda route: route.fulfill(body=kept + body["tokens"]))
    page.goto(f"{lead.url}/status")
    expect(page.get_by_role("img", name="Guesses that were right: \u2013", exact=True)).to_be_visible()
    expect(value(page, "In memory")).to_contain_text(re.compile("^1 conversation,"))
    expect(value(page, "On disk")).to_contain_text(re.compile("^2 conversations,"))
    body["tokens"] = "duo:draft_tokens_total 4.0\nduo:draft_tokens_accepted_total 3.0"
    words = re.compile("^Guesses that were right: \u2013 now, at most 75 %$")
    expect(page.get_by_role("img", name=words)).to_be_visible()


def test_guesses_show_sources_and_widths(page: Page, lead: Lead):
    told(page, lead, drafters=[LAPTOP], gate=GATE)
    lines = [
        'duo:drafter_tokens_total{drafter="laptop-1-00aa11bb",outcome="accepted"} 30.0',
        'duo:drafter_tokens_total{drafter="laptop-1-00aa11bb",outcome="wasted"} 10.0',
        'duo:drafter_tokens_total{drafter="lookup",outcome="accepted"} 1.0',
        "duo:draft_tokens_total 41.0",
        "duo:draft_tokens_accepted_total 31.0",
    ]
    page.route("**/metrics", lambda route: route.fulfill(body="\n".join(lines)))
    page.goto(f"{lead.url}/status")
    expect(page.locator("#sources tbody tr")).to_have_text(["laptop4075 %", "the text above1100 %"])
    expect(page.locator("#widths tbody tr")).to_have_text(["15.001.00 times", "46.001.20 times"])
    expect(value(page, "Right guesses since the start")).to_have_text("76 %")


def test_keyless_status_shows_its_gaps(page: Page, problems: list[str]):
    door = ClientPolicy(Edge(access=Access(["sk-right"])), None, 0)
    with serving(FakeBackend(FakeModel(seed=3)), door=door) as lead:
        page.goto(f"{lead.url}/status")
        expect(page.locator("#state")).to_contain_text("counts need an API key")
        expect(value(page, "Replies")).to_have_text("0 of 4 places taken")
        page.evaluate("() => localStorage.setItem('duo-api-key', 'sk-right')")
        page.reload()
        expect(page.locator("#state")).to_have_text("the server is well")
    expect(page.locator("#state")).to_have_text("the server does not answer", timeout=20_000)
    problems.clear()  # of the browser, about the 401


@pytest.mark.parametrize("screen", SCREENS)
def test_status_fits_every_screen(browser: Browser, lead: Lead, problems: list[str], screen: str):
    width, height = SCREENS[screen]
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark", bypass_csp=True
    )
    page = context.new_page()
    watch(page, problems)
    told(page, lead, drafters=[LAPTOP], gate=GATE)
    page.goto(f"{lead.url}/status")
    expect(page.locator("#plots figure")).to_have_count(3)
    found = Axe().run(page)
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    context.close()
    assert found.violations_count == 0, found.generate_report()
    assert problems == []


def test_a_server_without_pages_has_none(lead: Lead):
    with serving(FakeBackend(FakeModel(seed=3)), hidden=frozenset({"ui"})) as hidden:
        assert [httpx.get(hidden.url + path).status_code for path in ("/", "/status")] == [404, 404]
    page = httpx.get(f"{lead.url}/status")
    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert json.loads(httpx.get(f"{lead.url}/health").text)["drafters"][0]["name"] == "laptop"
