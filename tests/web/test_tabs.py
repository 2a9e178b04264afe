"""Several tabs show one conversation: each sees what the others do, and none loses anything."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, Route, expect

from tests.http_lead import Lead
from tests.web.conftest import watch
from tests.web.scripted import Reply, Script, ask, asked

pytestmark = pytest.mark.browser


def said(text: str) -> Reply:
    return Reply(((text, None),))


@pytest.fixture
def other(page: Page, problems: list[str]) -> Page:
    """Yield a second tab of the same browser."""
    tab = page.context.new_page()
    watch(tab, problems)
    return tab


def test_tabs_keep_both_conversations(page: Page, other: Page, lead: Lead):
    Script(page, said("one"))
    page.goto(lead.url)
    asked(page, "first")
    other.goto(page.url)
    expect(other.locator(".turn")).to_have_count(2)
    held: list[Route] = []
    page.unroute("**/v1/chat/completions")
    page.route("**/v1/chat/completions", lambda route: held.append(route))
    with page.expect_request("**/v1/chat/completions"):
        ask(page, "from this tab")
    Script(other, said("three"))
    expect(other.locator(".turn.user").last).to_contain_text("from this tab")
    other.locator(".turn.user").first.get_by_role("button", name="Edit").click()
    other.get_by_label("Edit the message").fill("first, in another way")
    other.get_by_label("Edit the message").press("Enter")
    expect(other.locator(".turn.assistant .text")).to_have_text("three")
    held[0].fulfill(content_type="text/event-stream", body=said("two").body)
    expect(page.locator(".turn.assistant .text").last).to_have_text("two")
    expect(page.locator(".turn.user").last).to_contain_text("from this tab")
    page.reload()
    first = page.locator(".turn.user").first
    expect(first).to_contain_text("/2")
    for _ in range(2):
        name = "Later version" if "1/2" in first.inner_text() else "Earlier version"
        shown = page.locator(".turn .text").all_inner_texts()
        if "in another way" in shown[0]:
            assert shown == ["first, in another way", "three"]
        else:
            assert shown == ["first", "one", "from this tab", "two"]
        first.get_by_role("button", name=name).click()


def test_other_tab_shows_streaming_reply(slow_lead: Lead, page: Page, other: Page):
    page.goto(slow_lead.url)
    ask(page, "go on forever")
    expect(page.locator(".turn.assistant .text")).not_to_be_empty()
    other.goto(page.url)
    expect(other.get_by_role("button", name="Send")).to_be_hidden()
    expect(other.locator(".turn.assistant .text")).not_to_be_empty()
    expect(other.locator(".ended")).to_have_count(0)
    page.keyboard.press("Escape")
    expect(other.get_by_role("button", name="Send")).to_be_visible()
    expect(other.locator(".ended")).to_contain_text("You stopped this reply.")
    slow_lead.until_idle()


def test_edit_survives_other_tabs(page: Page, other: Page, lead: Lead):
    script = Script(page, said("one"), said("three"))
    page.goto(lead.url)
    asked(page, "first")
    Script(other, said("two"))
    other.goto(page.url)
    expect(other.locator(".turn")).to_have_count(2)
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Edit the message").fill("half an ed")
    page.evaluate("""() => {
      window.told = new Promise((done) => {
        new BroadcastChannel("duo").onmessage = ({ data }) => data.running || done(true);
      });
    }""")
    asked(other, "second")
    assert page.evaluate("() => window.told")
    expect(page.get_by_label("Edit the message")).to_have_value("half an ed")
    page.get_by_label("Edit the message").press("Enter")
    expect(page.locator(".turn.assistant .text")).to_have_text("three")
    assert script.messages == [("user", "half an ed")]
    page.get_by_role("button", name="Earlier version").click()
    expect(page.locator(".turn .text")).to_have_text(["first", "one", "second", "two"])
