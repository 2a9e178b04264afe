"""Two leads and one Redis: a reply of one is read, cancelled and continued at the other."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import httpx
import openai
import pytest
import redis
from members import POOL
from openai.types.responses import Response
from test_orphans import frozen

from server.api import delivery
from server.api.background import BackgroundReplies
from server.api.resumed import begin_stream
from server.flags import read
from server.lead.serving import store_of
from server.replies import log_writing, redis_store
from server.replies.redis_names import CANCEL
from server.replies.redis_store import RedisStore
from server.replies.reply_log import ReplyLog
from server.settings import LeadSettings
from tests.fake_backend import FakeBackend, FakeModel
from tests.http_lead import Lead, serving
from tests.server.api.test_responses import HELLO, events_of
from tests.support import until

pytestmark = pytest.mark.redis
ENDLESS = 1 << 16


@contextmanager
def lead_at(url: str, *, endless: bool = False) -> Generator[Lead]:
    """Yield a lead that stores replies there."""
    model = FakeModel(seed=3, eog_rate=0.0) if endless else FakeModel(seed=3)
    backend = FakeBackend(model, n_ctx=ENDLESS, n_cells=ENDLESS, step_s=0.001 if endless else 0.0)
    settings = read(LeadSettings, ["--redis", url, "--pool", POOL])
    background = BackgroundReplies()
    with serving(backend, replies=store_of(settings, background, "toy"), background=background) as lead:
        yield lead


def sdk(lead: Lead) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{lead.url}/v1", api_key="none", max_retries=0)


def respond(client: openai.OpenAI, **more: Any) -> Response:
    asked: Any = {"model": "toy", "input": HELLO, "max_output_tokens": 60, **more}
    return cast(Response, client.responses.create(**asked))


def test_other_lead_streams_and_continues(url: str):
    with lead_at(url) as first, lead_at(url) as second, sdk(first) as here, sdk(second) as there:
        running = respond(here, background=True)
        events = list(there.responses.retrieve(running.id, stream=True))
        assert [event.sequence_number for event in events] == list(range(len(events)))
        told = there.responses.retrieve(running.id)
        assert told == here.responses.retrieve(running.id)
        assert told.output_text == respond(here).output_text
        id = here.conversations.create().id
        turn = respond(there, conversation=id)
        texts = [item.to_dict()["content"] for item in here.conversations.items.list(id, order="asc")]
        assert len(texts) == 2
        replies = [respond(one, previous_response_id=turn.id).output_text for one in (here, there)]
        assert replies[0] == replies[1]


def test_other_lead_cancels_and_deletes(url: str):
    with lead_at(url, endless=True) as first, lead_at(url, endless=True) as second, sdk(second) as there:
        asked = {"input": HELLO, "background": True}
        ids = [httpx.post(f"{first.url}/v1/responses", json=asked).json()["id"] for _ in range(2)]
        first.until(lambda engine: engine.n_active == 2)
        assert there.responses.cancel(ids[0]).status == "cancelled"
        there.responses.delete(ids[1])
        first.until_idle()
        until(lambda: not len(first.services.background), "the logs never ended")
        events = events_of(httpx.get(f"{second.url}/v1/responses/{ids[0]}?stream=true").content)
        assert events[-1]["response"]["status"] == "cancelled"
        for lead in (first, second):
            assert httpx.get(f"{lead.url}/v1/responses/{ids[1]}").status_code == 404


def test_responses_outlive_a_restart(url: str):
    with lead_at(url) as lead, sdk(lead) as client:
        before = client.responses.create(model="toy", input=HELLO, max_output_tokens=30)
        running = client.responses.create(model="toy", input=HELLO, background=True, max_output_tokens=30)
        list(client.responses.retrieve(running.id, stream=True))
    with lead_at(url) as lead, sdk(lead) as client:
        assert client.responses.retrieve(before.id) == before
        events = list(client.responses.retrieve(running.id, stream=True, starting_after=1))
        assert events[0].sequence_number == 2
        after = client.responses.create(model="toy", input="go on", previous_response_id=before.id)
        items = list(client.responses.input_items.list(after.id, order="asc"))
        assert [item.type for item in items] == ["message", "message", "message"]


def test_other_lead_replaces_a_conversations_stream(url: str):
    name = {"X-Conversation-Id": "0b5c::duo"}
    body = {"messages": [{"role": "user", "content": HELLO}], "stream": True}
    with lead_at(url, endless=True) as first, lead_at(url, endless=True) as second:
        with httpx.stream("POST", f"{first.url}/v1/chat/completions", json=body, headers=name) as stream:
            begun = next(stream.iter_bytes())
        read = {"conv_id": "0b5c::duo"}
        with httpx.stream("GET", f"{second.url}/v1/stream", params=read) as stream:
            again = b""
            for chunk in stream.iter_bytes():
                again += chunk
                if len(again) >= len(begun):
                    break
            assert again.startswith(begun)
        ids = {"conversation_ids": ["0b5c"]}
        [told] = httpx.post(f"{second.url}/v1/streams/lookup", json=ids).json()
        assert not told["is_done"]
        short = {**body, "max_tokens": 5}
        whole = httpx.post(f"{second.url}/v1/chat/completions", json=short, headers=name).content
        first.until_idle()
        assert httpx.get(f"{first.url}/v1/stream", params=read).content == whole
        assert httpx.delete(f"{first.url}/v1/stream", params=read).status_code == 204
        assert httpx.get(f"{second.url}/v1/stream", params=read).status_code == 404


def test_stream_is_found_after_its_first_event(url: str, monkeypatch: pytest.MonkeyPatch):
    """Its name is stored late, when its log has events already."""
    monkeypatch.setattr(redis_store, "FLUSH_TIMEOUT_S", 60.0)
    body = {"messages": [{"role": "user", "content": HELLO}], "stream": True, "max_tokens": 5}
    found: list[Any] = []
    with lead_at(url) as first, lead_at(url) as second:
        store = cast(RedisStore, first.services.replies)
        put, live = store._documents.put, store._live  # pyright: ignore[reportPrivateUsage]

        def late(*about: Any) -> None:
            until(lambda: any(log.chunks for log in list(live.values())), "no event")
            put(*about)

        def look_up() -> None:
            ids = {"conversation_ids": ["0b5c"]}
            found.extend(httpx.post(f"{second.url}/v1/streams/lookup", json=ids).json())

        async def begun(*about: Any) -> ReplyLog:
            log = await begin_stream(*about)
            look_up()  # before this lead's event loop goes on
            return log

        monkeypatch.setattr(store._documents, "put", late)  # pyright: ignore[reportPrivateUsage]
        monkeypatch.setattr(delivery, "begin_stream", begun)
        name = {"X-Conversation-Id": "0b5c"}
        whole = httpx.post(f"{first.url}/v1/chat/completions", json=body, headers=name).content
        assert len(found) == 1
        assert httpx.get(f"{second.url}/v1/stream", params={"conv_id": "0b5c"}).content == whole


def test_draining_lead_replaces_no_stream(url: str, monkeypatch: pytest.MonkeyPatch):
    """It refuses at once, and does not wait for the writer of the earlier stream until it is cut off."""
    monkeypatch.setattr(log_writing, "LEASE_MS", 60_000)
    name = {"X-Conversation-Id": "0b5c"}
    body = {"messages": [{"role": "user", "content": HELLO}], "stream": True}
    answers: list[httpx.Response] = []
    with lead_at(url, endless=True) as first, lead_at(url) as second, redis.Redis.from_url(url) as client:
        with httpx.stream("POST", f"{first.url}/v1/chat/completions", json=body, headers=name) as stream:
            next(stream.iter_bytes())
        with frozen(cast(RedisStore, first.services.replies)):
            again = partial(httpx.post, f"{second.url}/v1/chat/completions", json=body, headers=name)
            asking = threading.Thread(target=lambda: answers.append(again(timeout=60)))
            asking.start()
            [writer] = cast("list[bytes]", client.keys("*:writer"))
            until(lambda: client.get(writer) == CANCEL, "it never waits")
            second.thread.drain()
            asking.join()
        assert (answers[0].status_code, answers[0].headers["retry-after"]) == (503, "1")
