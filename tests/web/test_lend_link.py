"""The chat page's dialog with the link for other devices, and the page that such a link opens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from server.api.access import Access
from server.api.lending import BrowserLender, Lending
from server.api.middleware import Edge
from server.lead.listening import ClientPolicy
from tests.fake_backend import FakeBackend, FakeModel
from tests.http_lead import Lead, serving
from tests.qr_codes import codes_in

pytestmark = pytest.mark.browser

KEY = "sk-a+b/c="


@pytest.fixture
def lead(tmp_path: Path) -> Iterator[Lead]:
    """Yield a lead with a key, whose address in its network is 192.168.1.7."""

    async def start(_: BrowserLender) -> Any:
        raise OSError

    model = tmp_path / "draft.gguf"
    model.write_bytes(b"GGUF")
    lending = Lending(model, start, address=lambda: "192.168.1.7")
    door = ClientPolicy(Edge(access=Access((KEY,))), None, 0)
    with serving(FakeBackend(FakeModel()), door=door, lending=lending) as one:
        yield one


def opened(page: Page, lead: Lead) -> None:
    """Open the chat page with the key, and the dialog."""
    page.add_init_script(f"localStorage.setItem('duo-api-key', '{KEY}')")
    page.goto(lead.url)
    page.get_by_role("button", name="Lend").click()


def url_of(lead: Lead) -> str:
    return f"http://192.168.1.7:{lead.url.rpartition(':')[2]}/lend"


WITH_KEY = "#key=sk-a%2Bb%2Fc%3D"


def test_link_has_the_key_while_asked_for(page: Page, lead: Lead):
    opened(page, lead)
    dialog = page.get_by_role("dialog", name="Lend a device")
    link, url = page.locator("#lend-link"), url_of(lead)
    expect(link).to_have_text(url)
    expect(link).to_have_attribute("href", url)
    dialog.get_by_role("checkbox").check()
    expect(link).to_have_text(url + WITH_KEY)
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert "sk-a" not in page.content(), "a closed dialog keeps no key"
    page.get_by_role("button", name="Lend").click()
    expect(link).to_have_text(url)


def test_camera_reads_the_link(page: Page, lead: Lead, problems: list[str]):
    opened(page, lead)
    dialog = page.get_by_role("dialog", name="Lend a device")
    expect(page.locator("#lend-code")).to_be_visible()
    assert codes_in(dialog.screenshot()) == [url_of(lead)]
    dialog.get_by_role("checkbox").check()
    expect(page.locator("#lend-link")).to_have_text(url_of(lead) + WITH_KEY)
    assert codes_in(dialog.screenshot()) == [url_of(lead) + WITH_KEY]
    assert Axe().run(page).response["violations"] == []
    problems.clear()  # screenshots and axe put styles into the page


def test_page_without_a_key_offers_none(page: Page, lead: Lead, problems: list[str]):
    page.goto(lead.url)
    page.get_by_role("dialog", name="Settings").get_by_role("button", name="Done").click()
    page.get_by_role("button", name="Lend").click()
    dialog = page.get_by_role("dialog", name="Lend a device")
    expect(dialog.get_by_role("status")).to_contain_text("API key")
    expect(dialog.get_by_role("checkbox")).to_be_hidden()
    expect(dialog.get_by_role("img")).to_be_hidden()
    problems.clear()


def test_link_brings_its_key(page: Page, lead: Lead, problems: list[str]):
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{lead.url}/lend#key=sk-a%2Bb%2Fc%3D")
    expect(page).to_have_url(f"{lead.url}/lend")
    assert page.evaluate("localStorage.getItem('duo-api-key')") == KEY
    expect(page.locator("#state")).to_contain_text("this browser cannot run")  # the file is no model
    assert [url for url in asked if url.endswith("/lend/model")]
    assert "key" not in "".join(url.partition("#")[0] for url in asked)
    problems.clear()
