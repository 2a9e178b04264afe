"""Streams that are read again by their conversation, in the form that llama-server's page uses."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from server.api import resumed
from server.api.access import Access
from server.api.middleware import Edge
from server.api.services import Services
from server.engine.events import Failed, Finished
from server.errors import BackendError, StoreError
from server.lead.listening import ClientPolicy
from server.replies.kept import StoredResponse
from server.replies.memory import MemoryStore
from tests import http_lead
from tests.fake_backend import FakeBackend, FakeModel
from tests.http_lead import Lead
from tests.server.api.scripted import CANCELLED_STATS, Call, Script, services
from tests.server.api.test_responses import STARTED, step
from tests.support import until

NAME = "0b5c::duo"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "stream": True, "max_tokens": 60}


def say(lead: Lead, name: str = NAME, **more: Any) -> httpx.Response:
    url = f"{lead.url}/v1/chat/completions"
    return httpx.post(url, json={**BODY, **more}, headers={"X-Conversation-Id": name})


def read(lead: Lead, name: str = NAME, start: int = 0) -> httpx.Response:
    return httpx.get(f"{lead.url}/v1/stream", params={"conv_id": name, "from": start})


def found(lead: Lead, *names: str) -> list[dict[str, Any]]:
    told = httpx.post(f"{lead.url}/v1/streams/lookup", json={"conversation_ids": names})
    assert told.status_code == 200
    return told.json()


def text_of(stream: bytes) -> str:
    lines = [line[6:] for line in stream.decode().splitlines() if line.startswith("data: {")]
    deltas = [choice["delta"] for line in lines for choice in json.loads(line)["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


def test_stream_equals_an_unnamed_one(lead: Lead):
    named, plain = say(lead), httpx.post(f"{lead.url}/v1/chat/completions", json=BODY)
    assert text_of(named.content) == text_of(plain.content) != ""
    assert named.content.endswith(b"data: [DONE]\n\n")
    again = read(lead)
    assert again.headers["content-type"].startswith("text/event-stream")
    assert again.content == named.content
    at = named.content.index(b"\n\n", 300) + 2
    assert read(lead, start=at).content == named.content[at:]
    assert read(lead, start=len(named.content)).content == b""


def test_earlier_pages_name_it_in_the_path(lead: Lead):
    whole = say(lead, "31d0::some/model").content
    url = f"{lead.url}/v1/stream/31d0%3A%3Asome%2Fmodel"
    at = whole.index(b"\n\n") + 2
    assert httpx.get(url, params={"from": at}).content == whole[at:]
    assert httpx.get(f"{url}s").status_code == 404
    assert httpx.delete(url).status_code == 204
    assert httpx.get(url).status_code == 404


def test_lookup_finds_known_names_only(lead: Lead):
    whole = say(lead, "77aa::duo").content
    [told] = found(lead, "77aa")
    assert found(lead, "77aa::duo", "another") == [told]
    assert (told["conversation_id"], told["is_done"], told["total_bytes"]) == ("77aa::duo", True, len(whole))
    assert told["completed_at"] >= told["started_at"] > 0
    assert found(lead) == found(lead, "77a", "") == []


def test_next_stream_takes_the_place(lead: Lead):
    before = say(lead).content
    after = say(lead, max_tokens=3).content
    assert read(lead).content == after != before
    assert len(found(lead, "0b5c", NAME)) == 2  # by both names, as llama-server answers


def test_refusals_leave_no_stream(lead: Lead):
    name = "refused"
    assert say(lead, name, max_tokens=-7).status_code == 400
    assert say(lead, name, messages=[{"role": "user", "content": "x" * 5000}]).status_code == 400
    assert read(lead, name).status_code == 404
    for query in ({}, {"conv_id": ""}, {"conv_id": NAME, "from": "x"}):
        refused = httpx.get(f"{lead.url}/v1/stream", params=query)
        assert refused.status_code == 400
    assert httpx.delete(f"{lead.url}/v1/stream").status_code == 400
    assert httpx.delete(f"{lead.url}/v1/stream?conv_id=unknown").status_code == 204


def test_reply_outlives_its_client_until_stopped(slow_lead: Lead):
    url = f"{slow_lead.url}/v1/chat/completions"
    body = {**BODY, "max_tokens": None}
    with httpx.stream("POST", url, json=body, headers={"X-Conversation-Id": NAME}) as stream:
        next(stream.iter_bytes())
    slow_lead.until(lambda engine: engine.meter.n_decodes > 20 and engine.n_active == 1)
    [told] = found(slow_lead, NAME)
    assert (told["is_done"], told["completed_at"]) == (False, 0)
    with httpx.stream("GET", f"{slow_lead.url}/v1/stream", params={"conv_id": NAME}) as stream:
        chunks, n_read = stream.iter_bytes(), 0
        while n_read < told["total_bytes"]:
            n_read += len(next(chunks))
        assert httpx.delete(f"{slow_lead.url}/v1/stream", params={"conv_id": NAME}).status_code == 204
        assert b"error" not in b"".join(chunks)
    slow_lead.until_idle()
    assert read(slow_lead).status_code == 404
    until(lambda: len(slow_lead.services.background) == 0, "its log never ended")


async def ask(state: Services) -> Call:
    call = Call(state, body=BODY, headers={"X-Conversation-Id": NAME})
    await asyncio.wait_for(call.run(), 10)
    return call


async def test_failures_have_status_or_event():
    early = await ask(services(Script(Failed(BackendError("never begun")))))
    assert (early.status, early.json["error"]["message"]) == (500, "never begun")
    late = await ask(services(Script(STARTED, step("ab"), Failed(BackendError("no more")))))
    assert late.status == 200
    assert late.events[-1]["error"]["message"] == "no more"


class Unreachable(MemoryStore):
    async def get(self, salt: str, id: str) -> StoredResponse | None:
        raise StoreError.unreachable()


async def test_lost_store_costs_no_reply():
    one = Script(STARTED, step("ab"), Finished("stop", CANCELLED_STATS))
    told = await ask(replace(services(one), replies=Unreachable()))
    assert told.status == 200
    assert text_of(told.content) == "ab"


async def test_silence_is_pinged_in_the_log(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(resumed, "PING_S", 0.001)
    one = Script(STARTED, step("ab"))
    state = services(one)
    call = Call(state, body=BODY, headers={"X-Conversation-Id": NAME})
    running = asyncio.ensure_future(call.run())
    await call.until_sent(b": ping\n\n: ping\n\n")
    one.tell(Finished("stop", CANCELLED_STATS))
    await running
    again = Call(state, path="/v1/stream", method="GET", query="conv_id=0b5c%3A%3Aduo")
    await again.run()
    assert again.content == call.content


def test_other_key_finds_no_stream():
    door = ClientPolicy(Edge(access=Access(["sk-anna", "sk-bert"])), None, 0)
    with http_lead.serving(FakeBackend(FakeModel(seed=3)), door=door) as lead:
        anna, bert = ({"authorization": f"Bearer {key}"} for key in ("sk-anna", "sk-bert"))
        url, query = f"{lead.url}/v1/stream", {"conv_id": NAME}
        httpx.post(f"{lead.url}/v1/chat/completions", json=BODY, headers={**anna, "X-Conversation-Id": NAME})
        assert httpx.get(url, params=query, headers=bert).status_code == 404
        assert httpx.get(f"{url}/{NAME}", headers=bert).status_code == 404
        ids = {"conversation_ids": [NAME]}
        assert httpx.post(f"{lead.url}/v1/streams/lookup", json=ids, headers=bert).json() == []
        for stopped in (
            httpx.delete(url, params=query, headers=bert),
            httpx.delete(f"{url}/{NAME}", headers=bert),
        ):
            assert stopped.status_code == 204  # as for a name that nobody has
        assert httpx.get(url, params=query, headers=anna).content.endswith(b"[DONE]\n\n")
        assert httpx.delete(url, params=query, headers=bert).status_code == 204
        assert httpx.get(url, params=query, headers=anna).status_code == 200
