"""The chat page: what it keeps, and what happens while one types. One test a promise."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from tests.http_lead import Lead
from tests.web.conftest import watch
from tests.web.scripted import Reply, Script, ask, asked, asked_and_kept

pytestmark = pytest.mark.browser


# -- what is kept


def test_conversations_and_drafts_survive_reload(page: Page, lead: Lead):
    Script(page, Reply((("**A**", "d"), (" b", None))))
    page.goto(lead.url)
    asked_and_kept(page, "first question")
    page.get_by_label("Message", exact=True).fill("half a thou")
    page.reload()
    expect(page.locator(".turn.user .text")).to_have_text("first question")
    expect(page.locator(".turn.assistant strong")).to_have_text("A")
    expect(page.locator(".turn.assistant .text .guess")).to_have_text("A")
    expect(page.get_by_label("Message", exact=True)).to_have_value("half a thou")


def test_early_message_is_kept(page: Page, lead: Lead):
    page.add_init_script("""
      const open = IDBFactory.prototype.open;
      IDBFactory.prototype.open = function (...named) {
        const [request, stands] = [open.apply(this, named), new Promise((go) => (window.go = go))];
        Object.defineProperty(request, "onsuccess", { set(act) {
          request.addEventListener("success", () => stands.then(act));
        } });
        return request;
      };""")
    Script(page)
    page.goto(lead.url)
    ask(page, "too soon")
    page.evaluate("window.go()")
    reply = page.locator(".turn").last
    expect(reply.get_by_role("button", name="Regenerate")).to_be_visible()
    page.evaluate("new Promise((go) => setTimeout(go))")
    expect(page.locator(".turn.user .text")).to_have_text("too soon")
    expect(page.locator("#list .open")).to_have_text(["too soon"])


def test_saving_blocks_no_sending(page: Page, lead: Lead):
    page.add_init_script("""
      const begin = IDBDatabase.prototype.transaction;
      IDBDatabase.prototype.transaction = function (name, mode) {
        const transaction = begin.call(this, name, mode);
        if (mode === "readwrite") Object.defineProperty(transaction, "oncomplete", { set() {} });
        return transaction;
      };""")
    Script(page)
    page.goto(lead.url)
    asked(page, "one")
    asked(page, "two")


@pytest.mark.parametrize("n_stored", [0, 1])
def test_closed_page_keeps_whole_reply(page: Page, lead: Lead, n_stored: int):
    """The browser stores n_stored: of the question, or of the question with its reply."""
    Script(page, Reply((("A", "d"), (" b", None))))
    page.goto(lead.url)
    page.evaluate(
        """(nStored) => {
      const begin = IDBDatabase.prototype.transaction;
      const never = { objectStore: () => ({ get: () => ({}) }) };
      let n = 0;
      IDBDatabase.prototype.transaction = function (name, mode) {
        return mode === "readwrite" && n++ >= nStored ? never : begin.call(this, name, mode);
      };
    }""",
        n_stored,
    )
    asked(page, "question")
    page.goto(lead.url)  # another page: the conversation is in the list
    page.locator("#list .open").click()
    expect(page.locator(".turn.user .text")).to_have_text("question")
    expect(page.locator(".turn.assistant .text")).to_have_text("A b")
    expect(page.locator(".turn.assistant .text .guess")).to_have_text("A")
    expect(page.locator(".turn.assistant")).not_to_contain_text("The page was closed")
    page.reload()
    expect(page.locator(".turn.assistant .text")).to_have_text("A b")


def test_reloaded_page_resumes_the_reply(slow_lead: Lead, page: Page):
    page.goto(slow_lead.url)
    ask(page, "go on forever")
    text = page.locator(".turn.assistant .text")
    expect(text).not_to_be_empty()
    before = text.inner_text().strip()
    page.reload()
    longer = "(n) => document.querySelector('.turn.assistant .text')?.innerText.length > n"
    page.wait_for_function(longer, arg=len(before) + 50)
    assert text.inner_text().startswith(before[:40])
    assert slow_lead.thread.engine.n_active == 1
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".turn.assistant")).to_contain_text("You stopped this reply.")
    slow_lead.until_idle()


def test_cut_connection_resumes_the_reply(page: Page, lead: Lead):
    page.goto(lead.url)
    whole = asked(page, "hello").locator(".text").inner_text()

    def cut(route: Route) -> None:
        response = route.fetch()
        end = response.text().index("\n\n", len(response.text()) // 2) + 2
        route.fulfill(content_type="text/event-stream", body=response.text()[:end])

    page.route("**/v1/chat/completions", cut)
    page.get_by_role("button", name="New conversation").click()
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Seed").fill("1")
    page.get_by_role("button", name="Done").click()
    reply = asked(page, "hello")
    page.unroute("**/v1/chat/completions")
    reply.get_by_role("button", name="Regenerate").click()
    again = page.locator(".turn.assistant").last
    expect(again.get_by_role("button", name="Regenerate")).to_be_visible(timeout=20_000)
    expect(reply.locator(".text")).to_have_text(again.locator(".text").inner_text())
    assert whole


def test_interrupted_reply_is_kept_marked(slow_lead: Lead, page: Page):
    page.goto(slow_lead.url)
    ask(page, "go on forever")
    expect(page.locator(".turn.assistant .text")).not_to_be_empty()
    page.route("**/v1/streams/lookup", lambda route: route.fulfill(json=[]))  # as after a restart
    page.reload()
    reply = page.locator(".turn.assistant")
    expect(reply).to_contain_text("The page was closed while this reply came.")
    assert reply.locator(".text").inner_text().strip()


def test_conversations_are_listed_found_renamed_and_deleted(page: Page, lead: Lead):
    Script(page)
    page.goto(lead.url)
    asked(page, "about apples")
    page.get_by_role("button", name="New conversation").click()
    asked(page, "about pears")
    titles = page.locator("#list .open")
    expect(titles).to_have_text(["about pears", "about apples"])
    page.get_by_label("Search conversations").fill("APPLE")
    expect(titles).to_have_text(["about apples"])
    page.get_by_label("Search conversations").fill("")
    page.get_by_role("button", name="Rename about pears").click()
    page.get_by_label("New name").fill("Fruit")
    page.get_by_label("New name").press("Enter")
    expect(titles).to_have_text(["Fruit", "about apples"])
    page.get_by_role("button", name="Delete Fruit").click()
    expect(titles).to_have_text(["about apples"])
    expect(page.locator(".turn")).to_have_count(0)
    page.get_by_role("button", name="Undo").click()
    expect(titles).to_have_text(["Fruit", "about apples"])
    titles.last.click()
    expect(page.locator(".turn.user .text")).to_have_text("about apples")


def test_conversations_are_exported_and_imported(page: Page, lead: Lead, tmp_path: Path):
    Script(page, Reply((("A", "d"),)))
    page.goto(lead.url)
    asked(page, "first")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export all").click()
    download.value.save_as(tmp_path / "all.json")
    page.get_by_role("button", name="Delete first").click()
    expect(page.locator("#list .open")).to_have_count(0)
    page.set_input_files("#import", tmp_path / "all.json")
    expect(page.locator(".turn.assistant .text .guess")).to_have_text("A")
    (tmp_path / "other.json").write_text(json.dumps([1]))
    page.set_input_files("#import", tmp_path / "other.json")
    expect(page.get_by_role("alert")).to_contain_text("other.json was not imported")


def test_tabs_see_each_other_and_overwrite_nothing(page: Page, lead: Lead, problems: list[str]):
    Script(page)
    page.goto(lead.url)
    asked(page, "in the first tab")
    other = page.context.new_page()
    watch(other, problems)
    Script(other, Reply((("from the second", None),)))
    other.goto(page.url)
    expect(other.locator(".turn.user .text")).to_have_text("in the first tab")
    asked(other, "in the second tab")
    expect(page.locator(".turn").last.locator(".text")).to_have_text("from the second")
    other.get_by_role("button", name="New conversation").click()
    asked(other, "a third thing")
    expect(page.locator("#list .open")).to_have_text(["a third thing", "in the first tab"])
    expect(page.locator(".turn.user .text").first).to_have_text("in the first tab")


def test_page_works_without_storage(page: Page, lead: Lead):
    page.add_init_script("""
      const get = () => { throw new DOMException("no", "SecurityError"); };
      for (const store of ["indexedDB", "localStorage"]) Object.defineProperty(window, store, { get });
    """)
    Script(page)
    page.goto(lead.url)
    expect(page.get_by_role("alert")).to_contain_text("This browser keeps nothing")
    asked(page, "hello")
    page.get_by_role("button", name="New conversation").click()
    page.locator("#list .open").click()
    expect(page.locator(".turn.user .text")).to_have_text("hello")


# -- while one types


def test_typing_is_evaluated_ahead(page: Page, lead: Lead):
    page.goto(lead.url)
    with page.expect_response("**/v1/precompute") as typed:
        page.get_by_label("Message", exact=True).press_sequentially(
            "a long question that takes a while to type"
        )
    assert typed.value.json()["completed"]
    page.get_by_label("Message", exact=True).press("Enter")
    expect(page.locator(".cost")).to_contain_text("prompt tokens reused", timeout=20_000)
    found = re.search(r"(\d+) of \d+ prompt tokens reused", page.locator(".cost").inner_text())
    assert found
    assert int(found[1]) > len("a long question that takes a while to type")
    lead.until_idle()


def test_typing_ahead_can_be_off(page: Page, lead: Lead):
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    page.goto(lead.url)
    expect(page.locator("#typing")).to_contain_text("goes to the server while you type")
    page.get_by_role("button", name="Wait for Enter").click()
    expect(page.locator("#typing")).to_contain_text("goes to the server when you send it")
    page.get_by_label("Message", exact=True).press_sequentially("a secret")
    asked(page, "another")
    assert not [url for url in sent if url.endswith("/v1/precompute")]
    lead.until_idle()


def test_keys_reach_newline_and_last(page: Page, lead: Lead):
    script = Script(page)
    page.goto(lead.url)
    box = page.get_by_label("Message", exact=True)
    box.press_sequentially("one")
    box.press("Shift+Enter")
    box.press_sequentially("two")
    box.press("Enter")
    expect(page.locator(".turn.assistant .text")).to_have_text("fine")
    assert script.messages == [("user", "one\ntwo")]
    box.press("ArrowUp")
    expect(page.get_by_label("Edit the message")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_label("Edit the message")).to_have_count(0)
