"""The chat page: what is sent is what is shown, and how replies end. One test a promise."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from server.api.access import Access
from server.api.middleware import Edge
from server.lead.listening import ClientPolicy
from tests.fake_backend import FakeBackend, FakeModel
from tests.http_lead import Lead, serving
from tests.web.scripted import Reply, Script, ask, asked

pytestmark = pytest.mark.browser


def on_screen(page: Page) -> list[tuple[str, str]]:
    turns = page.locator(".turn").all()
    shown = [(one.get_attribute("class") or "", one.locator(".text").first.inner_text()) for one in turns]
    return [("user" if "user" in kind else "assistant", text) for kind, text in shown if text]


# -- what is sent is what is shown


def test_streamed_conversation_shows_its_cost(page: Page, lead: Lead):
    page.goto(lead.url)
    expect(page.locator("#model")).to_contain_text("toy")
    expect(page.locator("#status")).to_contain_text("refused: laptop (vocabulary sizes differ)")
    reply = asked(page, "hello <b>there</b>")
    expect(page.locator(".turn.user .text")).to_have_text("hello <b>there</b>")
    expect(reply.locator(".cost")).to_contain_text("prompt tokens reused")
    assert reply.locator(".text").inner_text().strip()
    asked(page, "and then?")
    expect(page.locator(".cost")).to_have_count(2)
    page.get_by_role("button", name="New conversation").click()
    expect(page.locator(".turn")).to_have_count(0)
    lead.until_idle()


def test_shown_text_is_sent(page: Page, lead: Lead):
    script = Script(page, Reply(error="the model broke"), Reply((("two", None),)), Reply((("four", None),)))
    page.goto(lead.url)
    ask(page, "one")
    expect(page.locator(".turn.failed")).to_contain_text("The reply failed: the model broke")
    ask(page, "again")
    expect(page.locator(".turn").last).to_contain_text("two")
    ask(page, "three")
    expect(page.locator(".turn").last).to_contain_text("four")
    assert [*script.messages, ("assistant", "four")] == on_screen(page)
    assert script.messages == [
        ("user", "one"),
        ("assistant", "fine"),
        ("user", "again"),
        ("assistant", "two"),
        ("user", "three"),
    ]


def test_failed_message_can_be_retried(page: Page, lead: Lead):
    script = Script(page, Reply((), error="out of memory"), Reply((("there", None),)))
    page.goto(lead.url)
    ask(page, "a long question")
    failed = page.locator(".turn.failed")
    expect(failed).to_contain_text("out of memory")
    expect(page.locator(".turn.user .text")).to_have_text("a long question")
    failed.get_by_role("button", name="Retry").click()
    expect(page.locator(".turn").last.locator(".text")).to_have_text("there")
    expect(page.locator(".turn.failed")).to_have_count(0)
    assert script.messages == [("user", "a long question")]


def test_edited_message_begins_a_branch(page: Page, lead: Lead):
    script = Script(page, Reply((("A", None),)), Reply((("B", None),)), Reply((("C", None),)))
    page.goto(lead.url)
    asked(page, "first")
    page.locator(".turn.user").get_by_role("button", name="Edit").click()
    page.get_by_label("Edit the message").fill("better")
    page.get_by_label("Edit the message").press("Enter")
    expect(page.locator(".turn.assistant .text")).to_have_text("B")
    assert script.messages == [("user", "better")]
    expect(page.locator(".turn.user .versions")).to_contain_text("2/2")
    page.get_by_role("button", name="Earlier version").click()
    expect(page.locator(".turn.user .text")).to_have_text("first")
    expect(page.locator(".turn.assistant .text")).to_have_text("A")
    asked(page, "more")
    assert script.messages == [("user", "first"), ("assistant", "A"), ("user", "more")]


def test_a_regenerated_reply_is_another_version(page: Page, lead: Lead):
    Script(page, Reply((("A", None),)), Reply((("B", None),)))
    page.goto(lead.url)
    asked(page, "first").get_by_role("button", name="Regenerate").click()
    reply = page.locator(".turn.assistant")
    expect(reply.locator(".text")).to_have_text("B")
    expect(reply.locator(".versions")).to_contain_text("2/2")
    reply.get_by_role("button", name="Earlier version").click()
    expect(page.locator(".turn.assistant .text")).to_have_text("A")


def test_settings_apply_to_new_conversations(page: Page, lead: Lead):
    script = Script(page)
    page.goto(lead.url)
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_label("Longest reply, in tokens").fill("64")
    page.get_by_label("Seed").fill("7")
    page.get_by_label("Thinking").select_option("off")
    page.get_by_role("button", name="Done").click()
    for _ in range(2):
        asked(page, "hello")
        sent = script.asked[-1]
        assert script.messages == [("system", "Be brief."), ("user", "hello")]
        assert (sent["temperature"], sent["max_tokens"], sent["seed"]) == (0.5, 64, 7)
        assert sent["chat_template_kwargs"] == {"enable_thinking": False}
        page.get_by_role("button", name="New conversation").click()
        page.reload()


def test_thoughts_fold_when_answering(page: Page, lead: Lead):
    script = Script(page, Reply((("Yes.", None),), thoughts="Let me *think*."))
    page.goto(lead.url)
    reply = asked(page, "is it?")
    expect(reply.locator("details.thoughts")).not_to_have_attribute("open", "")
    reply.get_by_text("Thoughts").click()
    expect(reply.locator("details.thoughts em")).to_have_text("think")
    asked(page, "sure?")
    assert script.asked[-1]["messages"][1]["reasoning_content"] == "Let me *think*."


# -- how a reply ends


def test_button_and_key_stop_replies(page: Page, slow_lead: Lead):
    page.goto(slow_lead.url)
    for stop in (page.get_by_role("button", name="Stop").click, lambda: page.keyboard.press("Escape")):
        ask(page, "go on forever")
        reply = page.locator(".turn").last
        expect(reply.locator(".text")).not_to_be_empty()
        stop()
        expect(page.get_by_role("button", name="Send")).to_be_visible()
        expect(reply).to_contain_text("You stopped this reply.")
        slow_lead.until_idle()


def test_stopped_reply_continues(page: Page, lead: Lead):
    script = Script(page, Reply((("one ", None), ("two ", "d")), reason="length"), Reply((("three", "d"),)))
    page.goto(lead.url)
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Longest reply, in tokens").fill("2")
    page.get_by_role("button", name="Done").click()
    reply = asked(page, "count")
    expect(reply).to_contain_text("The longest reply that the settings allow was reached.")
    reply.get_by_role("button", name="Continue").click()
    expect(reply.locator(".text")).to_have_text("one two three")
    assert script.messages == [("user", "count"), ("assistant", "one two ")]
    assert [mark.inner_text() for mark in reply.locator(".text .guess").all()] == ["two ", "three"]
    expect(reply.locator(".legend")).to_contain_text("laptop: 2 tokens")


def test_a_full_context_has_a_way_on(page: Page, lead: Lead):
    script = Script(page, Reply((("the end", None),), reason="length"))
    page.goto(lead.url)
    asked(page, "zero")
    reply = asked(page, "one")
    expect(reply).to_contain_text("The model's context is full.")
    reply.get_by_role("button", name="Go on in a new conversation").click()
    expect(page.locator(".turn")).to_have_count(2)
    asked(page, "two")
    assert script.messages == [("user", "one"), ("assistant", "the end"), ("user", "two")]


def test_long_prompt_is_reported(page: Page, lead: Lead, problems: list[str]):
    page.goto(lead.url)
    ask(page, "x" * 5000)
    expect(page.locator(".turn").last).to_contain_text("maximum context length")
    problems.clear()  # of the browser, about the 400


def test_lost_server_is_reported(page: Page, problems: list[str]):
    with serving(FakeBackend(FakeModel(seed=3))) as lead:
        page.goto(lead.url)
        asked(page, "hello")
        page.route("**/v1/chat/completions", lambda route: route.abort())
        ask(page, "still there?")
        expect(page.locator(".turn").last).to_contain_text("the server is gone, or cannot be reached")
        page.unroute("**/v1/chat/completions")
        page.get_by_role("button", name="Retry").click()
        expect(page.locator(".turn").last.locator(".cost")).to_be_visible(timeout=20_000)
        lead.until_idle()
    expect(page.locator("#status")).to_have_text("the server does not answer", timeout=20_000)
    problems.clear()


def test_required_key_is_asked_for(page: Page, problems: list[str]):
    door = ClientPolicy(Edge(access=Access(["sk-right"])), None, 0)
    with serving(FakeBackend(FakeModel(seed=3)), door=door) as lead:
        page.goto(lead.url)
        expect(page.locator("#status")).to_contain_text("wants an API key")
        expect(page.get_by_label("API key")).to_be_focused()
        page.get_by_label("API key").fill("sk-wrong")
        page.get_by_label("API key").press("Enter")
        expect(page.get_by_label("API key")).to_have_attribute("aria-invalid", "true")
        page.get_by_label("API key").fill("sk-right")
        page.get_by_label("API key").press("Enter")
        expect(page.locator("#model")).to_contain_text("toy")
        asked(page, "hello again")
        page.reload()
        expect(page.locator("#model")).to_contain_text("toy")
        lead.until_idle()
    problems.clear()
