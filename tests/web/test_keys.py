"""Keys and the drawer of narrow screens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.http_lead import Lead

pytestmark = pytest.mark.browser


@pytest.fixture
def phone(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 390, "height": 844})
    yield context.new_page()
    context.close()


def test_question_mark_lists_the_keys(page: Page, lead: Lead):
    page.goto(lead.url)
    page.get_by_label("Message", exact=True).press_sequentially("why?")
    expect(page.get_by_label("Message", exact=True)).to_have_value("why?")
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.get_by_role("button", name="New conversation").focus()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("stop the reply")
    expect(page.get_by_text("search conversations")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()


def test_drawer_closes_by_esc_or_tap(phone: Page, lead: Lead):
    phone.goto(lead.url)
    drawer = phone.get_by_role("button", name="Conversations")
    drawer.click()
    expect(phone.get_by_role("button", name="New conversation")).to_be_focused()
    phone.keyboard.press("Escape")
    expect(phone.locator("#side")).to_be_hidden()
    expect(drawer).to_be_focused()
    drawer.click()
    expect(phone.locator("#side")).to_be_visible()
    phone.mouse.click(380, 400)
    expect(phone.locator("#side")).to_be_hidden()


def test_tabbing_out_shows_focus(phone: Page, lead: Lead):
    phone.goto(lead.url)
    phone.get_by_role("button", name="Conversations").click()
    out = "() => document.activeElement !== document.body && !document.activeElement.closest('#side')"
    while not phone.evaluate(out):
        phone.keyboard.press("Tab")
    expect(phone.locator("#side")).to_be_hidden()
