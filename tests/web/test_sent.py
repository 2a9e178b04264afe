"""What stands on the screen is what is sent, in the cases where that takes care."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, Route, expect

from tests.http_lead import Lead
from tests.support import until
from tests.web.scripted import TIMINGS, Reply, Script, ask, asked

pytestmark = pytest.mark.browser

COMPLETIONS = "**/v1/chat/completions"
TRIES = 5  # as in server/web/api.js
LOADS = 2 * TRIES  # refusals of a server whose model loads
FULL = Reply(
    (("the last ", None), ("reply", None)),
    reason="length",
    timings={**TIMINGS, "prompt_n": 1000, "predicted_n": 24},
)


def test_system_prompt_goes_first(page: Page, lead: Lead):
    script = Script(page)
    page.goto(lead.url)
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_role("button", name="Done").click()
    expect(page.locator("#system")).to_contain_text("Be brief.")
    asked(page, "hello")
    expect(page.locator("#system")).to_contain_text("Be brief.")
    assert script.messages[0] == ("system", "Be brief.")


def test_editing_blocks_other_sending(page: Page, lead: Lead):
    script = Script(page)
    page.goto(lead.url)
    asked(page, "hello")
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Edit the message").fill("hello, edited")
    ask(page, "and then?")
    expect(page.get_by_role("alert")).to_contain_text("Send or cancel the edited message first.")
    expect(page.get_by_label("Edit the message")).to_be_focused()
    expect(page.get_by_label("Message", exact=True)).to_have_value("and then?")
    assert len(script.asked) == 1
    page.get_by_role("button", name="Cancel").click()
    asked(page, "and then?")
    assert [text for _, text in script.messages] == ["hello", "fine", "and then?"]


def test_stopped_thoughts_are_continued(page: Page, lead: Lead):
    Script(page, Reply((), thoughts="let me see", reason="length"))
    page.goto(lead.url)
    ask(page, "hello")
    page.get_by_role("button", name="Continue").or_(page.get_by_role("button", name="Go on")).first.wait_for()
    script = Script(page, Reply((("well", None),)))  # from now on: the first reply is here
    page.get_by_label("Message", exact=True).fill("")
    asked(page, "and then?")
    thoughtful = {"role": "assistant", "content": "", "reasoning_content": "let me see"}
    assert script.asked[-1]["messages"][1] == thoughtful


def test_failed_try_is_no_version(page: Page, lead: Lead):
    Script(page, Reply((), error="it broke"), Reply((("well", None),)))
    page.goto(lead.url)
    ask(page, "hello")
    page.get_by_role("button", name="Retry").click()
    expect(page.locator(".turn.assistant .text")).to_have_text("well")
    expect(page.get_by_role("button", name="Earlier version")).to_have_count(0)


def test_full_context_moves_last_turns(page: Page, lead: Lead):
    script = Script(page, Reply((("x" * 2000, None),)), FULL, Reply(((" goes on", None),)))
    page.goto(lead.url)
    expect(page.locator("#model")).to_contain_text("toy")
    asked(page, "long ago")
    asked(page, "at last").get_by_role("button", name="Go on in a new conversation").click()
    page.get_by_role("button", name="Continue").click()
    expect(page.locator(".turn .text")).to_have_text(["at last", "the last reply goes on"])
    assert script.messages == [("user", "at last"), ("assistant", "the last reply")]


def test_filling_reply_moves_in_part(page: Page, lead: Lead):
    long = Reply((("x" * 5000 + " end", None),), reason="length", timings=FULL.timings)
    script = Script(page, long, Reply((("s", None),)))
    page.goto(lead.url)
    expect(page.locator("#model")).to_contain_text("toy")
    asked(page, "write").get_by_role("button", name="Go on in a new conversation").click()
    page.get_by_role("button", name="Continue").click()
    expect(page.locator(".turn.assistant .text")).to_contain_text("ends")
    assert 1000 < len(script.messages[1][1]) < 2000  # characters, of a context of 1024 tokens


def test_copying_works_without_clipboard(page: Page, lead: Lead):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    read = "() => Clipboard.prototype.readText.call(window.real)"
    page.add_init_script("""
      window.real = navigator.clipboard;
      Object.defineProperty(navigator, "clipboard", { value: undefined });
    """)
    Script(page)
    page.goto(lead.url)
    reply = asked(page, "hello")
    reply.get_by_role("button", name="Copy this message").click()
    expect(reply.get_by_role("button", name="Copy this message")).to_have_text("Copied")
    assert page.evaluate(read) == "fine"


def test_unfitting_question_moves_on(page: Page, lead: Lead, problems: list[str]):
    message = "This model's maximum context length is 1024 tokens"
    error = {"message": message, "type": "x", "param": None, "code": "context_length_exceeded"}
    Script(page, Reply((("x" * 2000, None),)))
    page.goto(lead.url)
    expect(page.locator("#model")).to_contain_text("toy")
    asked(page, "long ago")
    script = Script(page, Reply((("well", None),)))
    page.route(COMPLETIONS, lambda route: route.fulfill(status=400, json={"error": error}), times=1)
    ask(page, "at last")
    page.get_by_role("button", name="Go on in a new conversation").click()
    expect(page.locator(".turn .text")).to_have_text(["at last", "well"])
    assert script.messages == [("user", "at last")]
    problems.clear()


def test_busy_server_is_asked_again(page: Page, lead: Lead, problems: list[str]):
    error = {"message": "too many requests", "type": "x", "param": None, "code": None}
    script = Script(page, Reply((("well", None),)))
    busy = {"Retry-After": "7"}
    page.route(
        COMPLETIONS, lambda route: route.fulfill(status=429, headers=busy, json={"error": error}), times=1
    )
    page.clock.install()
    page.goto(lead.url)
    ask(page, "hello")
    expect(page.locator(".news")).to_contain_text("The server is busy. It is asked again in 7 s.")
    assert script.asked == []
    page.clock.run_for(7000)
    expect(page.locator(".turn.assistant .text")).to_have_text("well")
    problems.clear()


def test_loading_server_is_asked_until_ready(page: Page, lead: Lead, problems: list[str]):
    error = {"message": "the server is loading its model", "type": "server_error"}
    script = Script(page, Reply((("well", None),)))
    health: dict[str, object] = {"status": "loading", "drafters": [], "draft_mode": "async"}
    n_refused = 0

    def refuse(route: Route) -> None:
        nonlocal n_refused
        if n_refused == LOADS:
            route.fallback()
        else:
            n_refused += 1
            route.fulfill(status=503, headers={"Retry-After": "7"}, json={"error": error})

    def tell(route: Route) -> None:
        if n_refused == LOADS:
            route.fallback()
        else:
            route.fulfill(status=503, json=health)

    page.route(COMPLETIONS, refuse)
    page.route("**/health", tell)
    page.clock.install()
    page.goto(lead.url)
    ask(page, "hello")
    told = page.locator(".news li")
    expect(told).to_have_text(["The server is loading its model. It is asked again in 7 s."])

    def has_answered() -> bool:
        page.clock.run_for(7000)
        return page.locator(".turn.assistant .text").text_content() == "well"

    until(has_answered, "it was not asked again")
    expect(told).to_have_count(1)
    assert (n_refused, len(script.asked)) == (LOADS, 1)
    problems.clear()


def test_closing_server_is_asked_five_times(page: Page, lead: Lead, problems: list[str]):
    n_refused = 0

    def refuse(route: Route) -> None:
        nonlocal n_refused
        n_refused += 1
        error = {"message": "the server is shutting down"}
        route.fulfill(status=503, headers={"Retry-After": "7"}, json={"error": error})

    page.route(COMPLETIONS, refuse)
    page.clock.install()
    page.goto(lead.url)
    ask(page, "hello")

    def has_failed() -> bool:
        page.clock.run_for(7000)
        return page.locator(".ended").count() == 1

    until(has_failed, "it is asked for ever")
    expect(page.locator(".ended")).to_contain_text("the server is shutting down")
    assert n_refused == TRIES
    problems.clear()


def test_waiting_can_be_stopped(page: Page, lead: Lead, problems: list[str]):
    busy = {"Retry-After": "7"}
    page.route(
        COMPLETIONS, lambda route: route.fulfill(status=429, headers=busy, json={"error": {"message": "x"}})
    )
    page.clock.install()
    page.goto(lead.url)
    ask(page, "hello")
    expect(page.locator(".news")).to_contain_text("asked again")
    page.keyboard.press("Escape")
    expect(page.locator(".ended")).to_contain_text("You stopped this reply.")
    problems.clear()
