"""Background responses: queued, streamed again, cancelled, deleted, and apart from every connection."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import httpx
import openai
import pytest

from server.api import answer, background
from server.api.access import Access
from server.api.middleware import Edge
from server.api.services import Services
from server.engine.events import Failed, Finished
from server.errors import BackendError, LostReplyError
from server.lead.listening import ClientPolicy
from server.replies.kept import KeptBounds
from server.replies.memory import MemoryStore
from server.replies.reply_log import ReplyLog
from server.replies.store import Owner
from tests import http_lead
from tests.contract.contract import validate
from tests.fake_backend import FakeBackend, FakeModel
from tests.gated import Gated, at_command
from tests.http_lead import Lead
from tests.server.api.scripted import CANCELLED_STATS, Call, Script
from tests.server.api.test_responses import HELLO, STARTED, answered, ask, events_of, post, serving, step
from tests.support import ENDLESS, until


def ended(lead: Lead, id: str) -> dict[str, Any]:
    """Return a background response once it has ended."""
    found: dict[str, Any] = {}

    def has_ended() -> bool:
        found.update(httpx.get(f"{lead.url}/v1/responses/{id}").json())
        validate("Response", found)
        return found["status"] not in ("queued", "in_progress")

    until(has_ended, "it never ended")
    return found


def streamed(lead: Lead, id: str, after: int = -1) -> bytes:
    query = {"stream": "true", **({"starting_after": str(after)} if after >= 0 else {})}
    told = httpx.get(f"{lead.url}/v1/responses/{id}", params=query)
    assert told.headers["content-type"].startswith("text/event-stream")
    return told.content


def test_background_equals_the_undisturbed_response(lead: Lead):
    asked: dict[str, Any] = {"seed": 1, "temperature": 1.0, "max_output_tokens": 30}
    plain = answered(lead, **asked)
    queued = answered(lead, background=True, **asked)
    assert (queued["status"], queued["background"], queued["output"]) == ("queued", True, [])
    told = ended(lead, queued["id"])
    assert told["status"] == plain["status"]
    assert [one["content"] for one in told["output"]] == [one["content"] for one in plain["output"]]
    assert told["usage"]["output_tokens"] == plain["usage"]["output_tokens"]
    events = events_of(streamed(lead, queued["id"]))
    assert [one["type"] for one in events[:3]] == [
        "response.created",
        "response.queued",
        "response.in_progress",
    ]
    assert [one["response"]["status"] for one in events[:3]] == ["queued", "queued", "in_progress"]
    assert events[-1]["response"] == told


def test_stream_resumes_after_every_event(lead: Lead):
    whole = post(lead, background=True, stream=True, max_output_tokens=8).content
    id = events_of(whole)[0]["response"]["id"]
    parts = whole.split(b"\n\n")
    for after in range(-1, len(parts) - 1):
        assert streamed(lead, id, after) == b"\n\n".join(parts[after + 1 :])
    assert streamed(lead, id, 10**6) == b""
    for wrong in ("x", "1.5", "9" * 30):
        told = httpx.get(f"{lead.url}/v1/responses/{id}?stream=true&starting_after={wrong}")
        assert (told.status_code, told.json()["error"]["param"]) == (400, "starting_after")


def test_sdk_leaves_and_resumes(client: openai.OpenAI):
    asked: dict[str, Any] = {"model": "toy", "input": HELLO, "background": True, "max_output_tokens": 30}
    text, last, id = "", -1, ""
    with client.responses.create(**asked, stream=True) as stream:
        for event in stream:
            last = event.sequence_number
            if event.type == "response.created":
                id = event.response.id
            if event.type == "response.output_text.delta":
                text += event.delta
                break
    left = last
    for event in client.responses.retrieve(id, stream=True, starting_after=left):
        assert event.sequence_number == last + 1
        last = event.sequence_number
        if event.type == "response.output_text.delta":
            text += event.delta
    assert client.responses.retrieve(id).output_text == text
    with client.responses.stream(response_id=id, starting_after=left) as rest:
        numbers = [event.sequence_number for event in rest]
    assert numbers == list(range(left + 1, last + 1))
    whole = client.responses.create(model="toy", input=HELLO, max_output_tokens=30)
    assert whole.output_text == text


def test_sdk_cancels_and_deletes():
    backend = FakeBackend(FakeModel(eog_rate=0.0), n_ctx=ENDLESS, n_cells=ENDLESS, step_s=0.005)
    with (
        http_lead.serving(backend) as lead,
        openai.OpenAI(base_url=f"{lead.url}/v1", api_key="none", max_retries=0) as client,
    ):
        running = client.responses.create(model="toy", input=HELLO, background=True)
        lead.until(lambda engine: engine.n_active == 1)
        cancelled = client.responses.cancel(running.id)
        assert cancelled.status == "cancelled"
        assert client.responses.cancel(running.id) == cancelled
        lead.until_idle()
        events = events_of(streamed(lead, running.id))
        assert (events[-1]["type"], events[-1]["response"]["status"]) == ("response.incomplete", "cancelled")
        deleted = client.responses.create(model="toy", input=HELLO, background=True)
        client.responses.delete(deleted.id)
        lead.until_idle()
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(deleted.id)
        plain = client.responses.create(model="toy", input=HELLO, max_output_tokens=3)
        with pytest.raises(openai.BadRequestError, match="synchronous"):
            client.responses.cancel(plain.id)


def test_client_that_leaves_ends_nothing(slow_lead: Lead):
    url = f"{slow_lead.url}/v1/responses"
    asked = {"input": HELLO, "background": True, "stream": True, "max_output_tokens": 40}
    with httpx.stream("POST", url, json=asked) as stream:
        first = next(stream.iter_lines())
        assert first == "event: response.created"
    slow_lead.until(lambda engine: engine.n_active == 0 and engine.meter.n_decodes > 30)
    until(lambda: len(slow_lead.services.background) == 0, "its log never ended")


def test_every_step_has_its_status():
    one = Script()
    state = serving(one)

    async def now(id: str) -> dict[str, Any]:
        return (await ask(state, f"/v1/responses/{id}", "GET")).json

    async def steps() -> None:
        id = (await ask(state, background=True)).json["id"]
        assert (await now(id))["status"] == "queued"
        refused = await ask(state, previous_response_id=id)
        assert (refused.status, refused.json["error"]["param"]) == (400, "previous_response_id")
        one.tell(STARTED)
        while (told := await now(id))["status"] == "queued":
            await asyncio.sleep(0)
        assert (told["status"], told["output"]) == ("in_progress", [])
        one.tell(step("ab"))
        one.tell(Finished("length", CANCELLED_STATS))
        while (told := await now(id))["status"] == "in_progress":
            await asyncio.sleep(0)
        assert (told["status"], told["output"][0]["content"][0]["text"]) == ("incomplete", "ab")

    asyncio.run(steps())


async def test_failure_is_stored_and_told():
    state = serving(Script(STARTED, step("ab"), Failed(BackendError("no more"))))
    events = events_of((await ask(state, background=True, stream=True)).content)
    assert events[-1]["type"] == "response.failed"
    told = (await ask(state, f"/v1/responses/{events[0]['response']['id']}", "GET")).json
    assert (told["status"], told["error"]["message"]) == ("failed", "no more")
    refused = await ask(serving(), background=True, store=False)
    assert (refused.status, refused.json["error"]["param"]) == (400, "store")


async def test_failure_before_the_start_is_told():
    state = serving(Script(Failed(BackendError("never begun"))))
    events = events_of((await ask(state, background=True, stream=True)).content)
    assert [one["type"] for one in events] == ["response.created", "response.queued", "response.failed"]
    assert events[-1]["response"]["error"]["message"] == "never begun"


async def test_oversized_log_ends_its_reply(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(answer, "MAX_LOG_BYTES", 1500)
    one = Script(STARTED, *(step("ab") for _ in range(100)))
    events = events_of((await ask(serving(one), background=True, stream=True)).content)
    assert events[-1]["type"] == "response.failed"
    assert "too long" in events[-1]["response"]["error"]["message"]
    assert one.cancels


async def test_too_large_response_is_refused():
    one = Script()
    state = replace(serving(one), replies=MemoryStore(KeptBounds(most_bytes=2000)))
    refused = await ask(state, input="x" * 2000, background=True)
    assert (refused.status, len(state.background)) == (413, 0)
    assert "more than one API key may store" in refused.json["error"]["message"]
    assert one.cancels


async def test_response_that_grew_says_so():
    steps = (step("ab" * 50) for _ in range(9))
    one = Script(STARTED, *steps, Finished("stop", CANCELLED_STATS))
    state = replace(serving(one), replies=MemoryStore(KeptBounds(most_bytes=4000)))
    events = events_of((await ask(state, background=True, stream=True)).content)
    assert events[-1]["type"] == "response.completed"
    assert "more than one API key may store" in events[-1]["response"]["warnings"][0]


async def test_lost_store_is_told_once():
    class Losing(MemoryStore):
        def begin_log(self, owner: Owner, id: str, recipe: dict[str, Any] | None = None) -> ReplyLog:
            log = super().begin_log(owner, id)
            log.lost = True
            return log

    one = Script(STARTED, step("ab"), step("cd"), Finished("stop", CANCELLED_STATS))
    state = replace(serving(one), replies=Losing())
    events = events_of((await ask(state, background=True, stream=True)).content)
    warned = [one for one in events if one.get("response", {}).get("warnings")]
    assert [one["type"] for one in warned] == ["response.in_progress", "response.completed"]
    assert "no longer be stored" in warned[0]["response"]["warnings"][0]


async def test_gone_writer_is_an_error_event():
    class Elsewhere(MemoryStore):
        async def is_written(self, salt: str, id: str) -> bool:
            return False

        async def log(self, salt: str, id: str) -> Any:
            return self

        async def events(self, after: int) -> Any:
            yield b": begun\n\n"
            raise LostReplyError

    one = Script(STARTED)
    state: Services = replace(serving(one), replies=Elsewhere())
    id = (await ask(state, background=True)).json["id"]
    told = (await ask(state, f"/v1/responses/{id}", "GET")).json
    assert (told["status"], told["error"]["code"]) == ("failed", "server_error")
    call = Call(state, path=f"/v1/responses/{id}", method="GET", query="stream=true")
    await call.run()
    assert call.content.endswith(b'"sequence_number":1}\n\n')
    assert b"event: response.failed" in call.content
    one.tell(Finished("stop", CANCELLED_STATS))


async def test_deleted_response_stays_deleted(monkeypatch: pytest.MonkeyPatch):
    """Its step ends after the deletion."""
    monkeypatch.setattr(background, "ENDING_S", 0.0)
    one = Script(STARTED, step("ab"))
    state = serving(one)
    id = (await ask(state, background=True)).json["id"]
    assert (await ask(state, f"/v1/responses/{id}", "DELETE")).json["deleted"]
    one.tell(Finished("cancelled", CANCELLED_STATS))
    await state.background.close()
    assert len(state.background) == 0
    assert await state.replies.get("", id) is None


async def test_long_limits_are_refused():
    state = serving(Script(STARTED, step("ab"), Finished("stop", CANCELLED_STATS)))
    id = (await ask(state, store=True)).json["id"]
    call = Call(state, path=f"/v1/responses/{id}/input_items", method="GET", query="limit=" + "9" * 5000)
    await call.run()
    assert (call.status, call.json["error"]["param"]) == (400, "limit")


async def test_ending_lead_waits_for_last_events():
    one = Script(STARTED, step("ab"))
    state = serving(one)
    id = (await ask(state, background=True)).json["id"]
    one.tell(Finished("cancelled", CANCELLED_STATS))
    await state.background.close()
    stored = await state.replies.get("", id)
    assert stored is not None
    assert (stored.response["status"], len(state.background)) == ("failed", 0)


def test_other_key_cannot_resume_or_cancel():
    door = ClientPolicy(Edge(access=Access(["sk-anna", "sk-bert"])), None, 0)
    backend = Gated(FakeModel(eog_rate=0.0), n_ctx=ENDLESS, n_cells=ENDLESS)
    with http_lead.serving(backend, door=door) as lead, backend:
        anna, bert = ({"authorization": f"Bearer {key}"} for key in ("sk-anna", "sk-bert"))
        url = f"{lead.url}/v1/responses"
        id = httpx.post(url, json={"input": HELLO, "background": True}, headers=anna).json()["id"]
        assert len(id) == len("resp_") + 48  # 192 bits nobody guesses
        for path in (f"{url}/{id}", f"{url}/{id}?stream=true", f"{url}/{id}/input_items"):
            assert httpx.get(path, headers=bert).status_code == 404
        assert httpx.post(f"{url}/{id}/cancel", headers=bert).status_code == 404
        assert httpx.delete(f"{url}/{id}", headers=bert).status_code == 404
        assert httpx.get(f"{url}/{id}", headers=anna).json()["status"] in ("queued", "in_progress")
        with at_command(lead.thread, lambda: backend.allow(1)):
            assert httpx.post(f"{url}/{id}/cancel", headers=anna).json()["status"] == "cancelled"


class Paused:
    """An answer that ends when it is told to."""

    def __init__(self) -> None:
        self.end = asyncio.Event()

    async def write_to(self, log: ReplyLog, keep: object) -> None:
        await self.end.wait()

    def stop(self) -> None:
        self.end.set()


async def test_reply_taken_up_again_stays_known():
    """The task of the earlier answer ends after the later one has begun."""
    replies, answers = background.BackgroundReplies(), [Paused(), Paused()]
    tasks = [
        replies.start(Owner("", ""), "resp_1", cast("Any", answer), ReplyLog(guarded=True))
        for answer in answers
    ]
    answers[0].end.set()
    await tasks[0]
    assert replies.stop("", "resp_1") is tasks[1]
    await tasks[1]
    await asyncio.sleep(0)  # the callback of a task runs after those who await it
    assert len(replies) == 0
