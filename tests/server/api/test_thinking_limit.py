"""A request's limit on thoughts, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.http_lead import Lead, serving
from tests.server.api.test_conversations import toy
from tests.templates import REASONING


@pytest.fixture(scope="module")
def lead() -> Iterator[Lead]:
    with serving(toy(), template=REASONING) as one:
        yield one


def ask(lead: Lead, **more: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": "why?"}], "max_tokens": 40, "seed": 1, **more}
    response = httpx.post(f"{lead.url}/v1/chat/completions", json=body, timeout=30)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["message"]


@pytest.mark.parametrize(
    "name",
    ["reasoning_budget", "reasoning_budget_tokens", "thinking_budget_tokens", "max_thinking_tokens"],
)
def test_thoughts_end_at_the_limit(lead: Lead, name: str):
    free = ask(lead, **{name: -1})
    assert not free["content"]  # the toy never finds its way out of <think>
    held = ask(lead, **{name: 6})
    assert len(held["reasoning_content"]) <= 6
    assert free["reasoning_content"].startswith(held["reasoning_content"])
    assert held["content"]


def test_no_thoughts_at_all(lead: Lead):
    message = ask(lead, reasoning_budget=0)
    assert "reasoning_content" not in message
    assert message["content"]


@pytest.mark.parametrize(("named", "longest"), [({}, 6), ({"reasoning_budget": 2}, 2)])
def test_a_limit_of_the_server_s(named: dict[str, int], longest: int):
    with serving(toy(), template=REASONING, reasoning_budget=6) as limited:
        message = ask(limited, **named)
        assert message["content"]
        assert 0 < len(message["reasoning_content"]) <= longest
        assert not ask(limited, reasoning_budget=-1)["content"]


def test_a_form_holds_after_the_limit(lead: Lead):
    message = ask(lead, reasoning_budget=3, json_schema={"const": 42})
    assert message["content"] == "42"


def test_a_grammar_holds_after_the_limit(lead: Lead):
    message = ask(lead, reasoning_budget=0, grammar='root ::= "yes" | "no"')
    assert message["content"] in ("yes", "no")


def test_a_limit_that_is_none(lead: Lead):
    body = {"messages": [{"role": "user", "content": "why?"}], "reasoning_budget": -2}
    assert httpx.post(f"{lead.url}/v1/chat/completions", json=body, timeout=30).status_code == 400
