"""The tables of docs/api.md list every parameter that OpenAI's and Anthropic's SDK know; each row is true."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from anthropic.types.beta import message_create_params as messages
from openai.types import completion_create_params as legacy
from openai.types.chat import completion_create_params as chat
from openai.types.responses import response_create_params as responses

from server.engine.events import Finished, Started
from server.llama.backend import FillInMiddle
from tests.contract.claims import (
    BASES,
    HONOURED,
    IGNORED,
    KEPT,
    NAMED,
    NEUTRAL,
    PATHS,
    REFUSED,
    STORED,
    TEMPLATE,
)
from tests.fake_backend import FakeBackend, FakeModel, FakeVocabulary
from tests.http_lead import Lead, serving
from tests.server.api.scripted import CANCELLED_STATS, Call, Script, services

DOCUMENT = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
KNOWN: dict[str, set[str]] = {
    "chat": {*chat.CompletionCreateParamsBase.__annotations__, "stream"},
    "completion": {*legacy.CompletionCreateParamsBase.__annotations__, "stream"},
    "response": {*responses.ResponseCreateParamsBase.__annotations__, "stream"},
    "message": {*messages.MessageCreateParamsBase.__annotations__, "stream"} - {"betas"},  # a header
}
OF_OTHERS = {
    "chat": {"best_of", "max_tokens"},
    "completion": set[str](),
    "response": set[str](),
    "message": {"temperature", "top_p", "top_k", "output_format"},
}
"""Listed too: what the legacy API has, or the SDK does not call by this name any more, or not yet."""
HEADS = {
    "chat": "### OpenAI's\n\n| parameter |",
    "completion": "| parameter of a completion |",
    "response": "| parameter of a response |",
    "message": "| parameter of a message |",
}


def table(kind: str) -> dict[str, str]:
    """Return the fate of each parameter in docs/api.md; of one with fields the first part of the name."""
    lines = DOCUMENT.partition(HEADS[kind])[2]
    found: dict[str, str] = {}
    for line in lines.split("\n\n")[0].splitlines():
        if (row := re.match(r"\| (`.*?`) \| (honoured|refused|ignored) \| (.*)", line)) is not None:
            for name in re.findall(r"`([\w.]+)`", row[1]):
                parameter = name.partition(".")[0]
                assert parameter not in found, f"{parameter} has two rows"
                found[parameter] = row[2]
    return found


def rows(fate: str) -> list[tuple[str, str]]:
    return [(kind, name) for kind in KNOWN for name, told in table(kind).items() if told == fate]


@pytest.fixture(scope="module")
def lead() -> Iterator[Lead]:
    vocabulary = FakeVocabulary()
    vocabulary.fim = FillInMiddle(prefix=256, suffix=257, middle=258)
    backend = FakeBackend(FakeModel(seed=3, sharpness=1.0, eog_rate=0.0), vocab=vocabulary)
    with serving(backend, template=TEMPLATE) as one:
        yield one


VARYING = {
    *("id", "call_id", "created", "created_at", "timings", "metrics"),
    *("prompt_tokens_details", "input_tokens_details"),  # what is cached
    *("input_tokens", "cache_read_input_tokens"),  # Anthropic's
}
TOLD_AGAIN = {"store", "metadata", "service_tier"}
"""Parameters of a response that are told again, and nothing else here; of others that does not count."""


def steady(value: Any) -> Any:
    """Return a reply without what differs between two equal ones."""
    if isinstance(value, dict):
        items: list[tuple[str, Any]] = list(value.items())  # pyright: ignore[reportUnknownArgumentType]
        return {name: steady(part) for name, part in items if name not in VARYING}
    if isinstance(value, list):
        return [steady(part) for part in value]  # pyright: ignore[reportUnknownVariableType]
    return value


def asked(lead: Lead, kind: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(lead.url + PATHS[kind], json=body, timeout=30)


def observed(lead: Lead, kind: str, body: dict[str, Any], *, told: bool = True) -> tuple[Any, Any]:
    """Return what a client sees: a refusal, a reply, or the fields of a stream's events.

    Without `told`, only what was generated.
    """
    response = asked(lead, kind, body)
    if response.headers["content-type"].startswith("text/event-stream"):
        lines = [line.removeprefix("data: ") for line in response.text.splitlines() if "{" in line]
        return "stream", {name for line in lines for name in json.loads(line)}
    reply = steady(response.json())
    if kind == "response" and response.status_code == 200 and not told:
        reply = {"output": reply["output"], "usage": reply["usage"]}
    return response.status_code, reply


@pytest.mark.parametrize("kind", sorted(KNOWN))
def test_table_covers_the_sdk(kind: str):
    assert set(table(kind)) - OF_OTHERS[kind] == KNOWN[kind] - OF_OTHERS[kind]


@pytest.mark.parametrize(("kind", "name"), [row for row in rows("honoured") if row[1] != "prediction"])
def test_honoured_parameter_makes_a_difference(lead: Lead, kind: str, name: str):
    base, value = HONOURED[kind][name]
    body = {**BASES[kind], **base}
    if value is KEPT:
        kept = asked(lead, kind, {**BASES[kind], "thread": {"type": "create"}}).json()["id"]
        value = {"type": "continue", "previous_message_id": kept}
    if value is STORED:
        value = asked(lead, kind, {**BASES[kind], "input": "what was said before"}).json()["id"]
    if value is NAMED:
        items = {"items": [{"role": "user", "content": "what was said before"}]}
        value = httpx.post(f"{lead.url}/v1/conversations", json=items).json()["id"]
    told = name in TOLD_AGAIN
    with_it = observed(lead, kind, {**body, name: value}, told=told)
    without = observed(lead, kind, body, told=told)
    assert without == observed(lead, kind, body, told=told), "else a difference would say nothing"
    assert with_it != without
    if name not in ("model", "messages", "input", "prompt"):
        assert with_it[0] in (200, "stream"), with_it


async def test_a_prediction_reaches_the_engine():
    script = Script(Started(5, 2), Finished("stop", CANCELLED_STATS))
    body = {**BASES["chat"], "prediction": {"type": "content", "content": "likely"}}
    call = Call(services(script), body=body)
    await asyncio.wait_for(call.run(), 10)
    assert call.status == 200
    assert bytes(script.requests[0].speculation.prediction) == b"likely"


@pytest.mark.parametrize(("kind", "name"), rows("refused"))
def test_refused_parameter_is_named(lead: Lead, kind: str, name: str):
    response = asked(lead, kind, {**BASES[kind], name: REFUSED[name]})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["message"].startswith(f"{name}: ")
    if kind != "message":
        assert (error["param"], error["code"]) == (name, "unsupported_parameter")
    for neutral in (None, *NEUTRAL.get(name, ())):
        assert asked(lead, kind, {**BASES[kind], name: neutral}).status_code == 200


@pytest.mark.parametrize(("kind", "name"), rows("ignored"))
def test_ignored_parameter_changes_nothing(lead: Lead, kind: str, name: str):
    body = BASES[kind]
    for value in IGNORED[name]:
        changed = observed(lead, kind, {**body, name: value})
        assert changed[0] == 200
        assert changed == observed(lead, kind, body)
