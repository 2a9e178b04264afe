"""Replies that a test writes, in place of the server's, and what the page asked for them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from playwright.sync_api import Locator, Page, Route, expect

Token: TypeAlias = tuple[str, str | None]
SCREENS = {"phone": (390, 844), "tablet": (820, 1180), "desktop": (1280, 800)}
TIMINGS = {"predicted_n": 3, "predicted_per_second": 84.0, "cache_n": 0, "prompt_n": 5, "draft_n": 0}


@dataclass
class Reply:
    """A reply.

    tokens: with their sources. error: sent in the middle of the stream. cut: the stream just ends.
    """

    tokens: Sequence[Token] = (("fine", None),)
    reason: str = "stop"
    timings: Mapping[str, Any] = field(default_factory=lambda: TIMINGS)
    thoughts: str = ""
    error: str = ""
    cut: bool = False

    @property
    def body(self) -> str:
        events: list[Any] = []
        if self.thoughts:
            events.append({"choices": [{"delta": {"reasoning_content": self.thoughts}}]})
        for i in range(0, len(self.tokens), 2):  # two tokens to a chunk
            told = self.tokens[i : i + 2]
            sources = [{"text": text, "source": source} for text, source in told]
            content = "".join(text for text, _ in told)
            events.append({"choices": [{"delta": {"content": content}, "sources": sources}]})
        if self.error:
            events.append({"error": {"message": self.error}})
        elif not self.cut:
            last: dict[str, Any] = {
                "choices": [{"delta": {}, "finish_reason": self.reason}],
                "timings": self.timings,
            }
            events.append(last)
        ends = [] if self.cut else ["[DONE]"]
        return "".join(f"data: {event}\n\n" for event in [*map(json.dumps, events), *ends])


class Script:
    """Answers chat completions with these replies in turn, then always with the last.

    asked: the bodies.
    """

    def __init__(self, page: Page, *replies: Reply) -> None:
        self.asked: list[dict[str, Any]] = []
        self._replies = list(replies) or [Reply()]
        page.route("**/v1/chat/completions", self._answer)

    def _answer(self, route: Route) -> None:
        self.asked.append(json.loads(route.request.post_data or ""))
        reply = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
        route.fulfill(content_type="text/event-stream", body=reply.body)

    @property
    def messages(self) -> list[tuple[str, str]]:
        """The messages of the last request."""
        return [(one["role"], one["content"]) for one in self.asked[-1]["messages"]]


def ask(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_label("Message", exact=True).press("Enter")


def asked_and_kept(page: Page, text: str) -> None:
    """Ask, and wait until the browser has stored the whole reply, when it tells other tabs."""
    page.evaluate("""() => {
      window.kept = new Promise((done) => {
        new BroadcastChannel("duo").onmessage = ({ data }) => data.running || done(true);
      });
    }""")
    asked(page, text)
    page.evaluate("window.kept")


def asked(page: Page, text: str) -> Locator:
    """Ask, and wait for the reply's end."""
    n = page.locator(".turn").count()
    ask(page, text)
    expect(page.locator(".turn")).to_have_count(n + 2)
    expect(page.locator(".turn").last.get_by_role("button", name="Regenerate")).to_be_visible(timeout=20_000)
    return page.locator(".turn").last
