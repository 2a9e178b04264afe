"""Conversations over many turns, sent back as text each time: nothing is evaluated twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletion

from server.api.history import History
from server.text.template import CHATML
from tests.contract.contract import validate
from tests.fake_backend import FakeBackend, FakeModel
from tests.http_lead import Lead, serving
from tests.templates import LLAMA3, THINKING, TRIMMING

SLACK = 16  # template tokens between two messages
TEMPLATES = {"chatml": CHATML, "llama 3": LLAMA3, "trimming": TRIMMING, "thinking": THINKING}
TOOL: list[dict[str, Any]] = [
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}],
    },
    {"role": "tool", "tool_call_id": "1", "content": "the answer is 42"},
]


def toy() -> FakeBackend:
    return FakeBackend(FakeModel(seed=3, eog_rate=0.02), n_ctx=16_384, n_cells=65_536, n_seqs=6)


@pytest.fixture
def lead(request: pytest.FixtureRequest) -> Iterator[Lead]:
    with serving(toy(), template=request.param) as one:
        yield one


def say(client: openai.OpenAI, messages: list[Any], **more: Any) -> ChatCompletion:
    return client.chat.completions.create(
        model="default", messages=messages, temperature=1, seed=len(messages), max_tokens=60, extra_body=more
    )


def n_new(reply: ChatCompletion) -> int:
    assert reply.usage
    assert reply.usage.prompt_tokens_details
    return reply.usage.prompt_tokens - (reply.usage.prompt_tokens_details.cached_tokens or 0)


def around(lead: Lead) -> int:
    """Return how many bytes (the toy's tokens) the template puts around a user's message."""
    return len(lead.services.template.render([{"role": "user", "content": ""}])) + SLACK


@pytest.mark.parametrize("lead", TEMPLATES.values(), ids=TEMPLATES, indirect=True)
def test_ten_turns_evaluate_only_what_is_new(lead: Lead):
    history: list[dict[str, Any]] = [{"role": "system", "content": "Answer as you like. " * 10}]
    with openai.OpenAI(base_url=f"{lead.url}/v1", api_key="none") as client:
        for turn in range(10):
            question = f"question number {turn}, and a little more"
            history.append({"role": "user", "content": question})
            reply = say(client, history)
            if turn:
                assert n_new(reply) <= len(question) + around(lead)
            content = reply.choices[0].message.content
            history.append({"role": "assistant", "content": content})
            lead.until_idle()


@pytest.mark.parametrize("lead", [CHATML], indirect=True)
@pytest.mark.parametrize("continues", [True, False])
def test_only_continuing_turns_wait(lead: Lead, continues: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("server.api.history.LATER_S", 3600.0)  # if nobody wants it sooner
    done = list[str]()

    def note(name: str) -> None:
        work: Callable[..., Any] = getattr(History, name)

        def noted(*given: Any) -> Any:
            done.append(name)
            return work(*given)

        monkeypatch.setattr(History, name, noted)

    note("rendered")
    note("_remember_reply")
    asked = [{"role": "user", "content": "a question"}]
    with openai.OpenAI(base_url=f"{lead.url}/v1", api_key="none") as client:
        said = {"role": "assistant", "content": say(client, asked).choices[0].message.content}
        say(client, [*asked, said, *asked] if continues else asked)
    assert done[:2] == ["rendered", "_remember_reply" if continues else "rendered"]


@pytest.mark.parametrize("lead", [THINKING], indirect=True)
def test_dropped_text_is_reevaluated_when_idle(lead: Lead):
    """The thoughts of a reply are not shown in the next turn.

    What comes after them is evaluated without them before anybody asks.
    """
    history: list[dict[str, Any]] = [{"role": "user", "content": "think about it"}]
    with openai.OpenAI(base_url=f"{lead.url}/v1", api_key="none") as client:
        for turn in range(4):
            thought = f"<think>thought {turn}: " + "hm " * 40 + "</think>\n"
            reply = say(client, [*history, {"role": "assistant", "content": thought}])
            assert n_new(reply) < 260
            said = thought + (reply.choices[0].message.content or "")
            question = f"and then? {turn}"
            history += [{"role": "assistant", "content": said}, {"role": "user", "content": question}]
            lead.until_idle()
            next_one = say(client, history, n=1)
            assert n_new(next_one) <= len(question) + around(lead)
            content = next_one.choices[0].message.content
            history += [{"role": "assistant", "content": content}, {"role": "user", "content": "go on"}]
            lead.until_idle()


@pytest.mark.parametrize("lead", [THINKING], indirect=True)
def test_tool_results_follow_what_is_cached(lead: Lead):
    history: list[dict[str, Any]] = [{"role": "user", "content": "use a tool"}]
    with openai.OpenAI(base_url=f"{lead.url}/v1", api_key="none") as client:
        say(client, history)
        lead.until_idle()
        history += TOOL
        first = say(client, history)
        history += [
            {"role": "assistant", "content": first.choices[0].message.content},
            {"role": "user", "content": "thanks"},
        ]
        lead.until_idle()
        assert n_new(say(client, history)) <= len("thanks") + around(lead)


@pytest.mark.parametrize("lead", [CHATML], indirect=True)
def test_salts_keep_conversations_apart(lead: Lead):
    history: list[dict[str, Any]] = [{"role": "user", "content": "a secret question " * 5}]
    with openai.OpenAI(base_url=f"{lead.url}/v1", api_key="none") as client:
        mine = say(client, history, cache_salt="mine")
        theirs = say(client, history, cache_salt="theirs")
        nobodys = say(client, history)
        again = say(client, history, cache_salt="mine")
    assert mine.usage
    assert n_new(mine) == n_new(theirs) == n_new(nobodys) == mine.usage.prompt_tokens
    assert n_new(again) == 1


@pytest.mark.parametrize("lead", [CHATML], indirect=True)
def test_typing_is_precomputed(lead: Lead):
    typed = [{"role": "user", "content": "I have a long question about " + "things " * 20}]
    response = httpx.post(f"{lead.url}/v1/precompute", json={"messages": typed})
    assert response.status_code == 200
    validate("Precompute", response.json())
    assert response.json()["completed"]
    assert response.json()["cached_tokens"] == 0
    lead.until_idle()
    typed[0]["content"] += "and stuff"
    with openai.OpenAI(base_url=f"{lead.url}/v1", api_key="none") as client:
        reply = say(client, typed)
    assert n_new(reply) <= len("and stuff") + around(lead)


@pytest.mark.parametrize("lead", [CHATML], indirect=True)
def test_precompute_refuses_what_a_chat_refuses(lead: Lead):
    bodies: list[dict[str, Any]] = [
        {"messages": []},
        {"messages": [{"role": "user", "content": "x" * 40_000}]},
        {"no": 1},
    ]
    for body in bodies:
        response = httpx.post(f"{lead.url}/precompute", json=body)
        assert response.status_code == 400
        validate("Error", response.json())
