"""Chromium, and pages in it that must not complain."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

LEADS = {"lead", "slow_lead"}
SOON_MS = 20_000  # for what takes a second or two on an idle machine
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    expect.set_options(timeout=SOON_MS)
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


@pytest.fixture
def problems() -> list[str]:
    """Yield the page's complaints.

    A test that provokes one empties the list.
    """
    return []


@pytest.fixture
def page(browser: Browser, problems: list[str], request: pytest.FixtureRequest) -> Iterator[Page]:
    """Yield a page with its own storage, which closes before any lead that it would miss."""
    for name in LEADS.intersection(request.fixturenames):
        request.getfixturevalue(name)
    context = browser.new_context()
    page = context.new_page()
    watch(page, problems)
    yield page
    context.close()
    assert problems == []


def watch(page: Page, problems: list[str]) -> None:
    def said(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            problems.append(f"{message.text} ({message.location})")

    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", said)
