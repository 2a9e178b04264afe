"""A lead goes on with the reply of another: every kind of reply is as if it had never been interrupted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import httpx
import pytest
import redis
from members import POOL, Server
from test_orphans import frozen

from server.api.access import Access
from server.api.background import BackgroundReplies
from server.api.middleware import Edge
from server.flags import read
from server.lead.listening import ClientPolicy
from server.lead.serving import store_of
from server.pictures.registry import Pictures
from server.pictures.vocabulary import PictureVocabulary
from server.replies import log_writing, redis_documents, redis_link, redis_store
from server.replies.kept import KeptBounds, StoredResponse
from server.replies.redis_store import LeadGroup, RedisStore
from server.replies.reply_log import UNSTORED
from server.replies.store import Owner
from server.settings import LeadSettings
from tests.fake_backend import FakeBackend, FakeModel
from tests.http_lead import Lead, serving
from tests.server.api.test_responses import HELLO, THINKING
from tests.server.pictures.drawn import Painter, drawn, file_of, url_of
from tests.support import until

pytestmark = pytest.mark.redis

ENDLESS = 1 << 13  # tokens: 16 s at least, so that its lead ends first
ANNA, BERT = ({"authorization": f"Bearer {key}"} for key in ("sk-anna", "sk-bert"))
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
SEEN = {"type": "input_image", "image_url": url_of(file_of(drawn("red")))}
TOOL = {"type": "function", "name": "look", "parameters": SCHEMA}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "logprobs": {"top_logprobs": 3, "include": ["message.output_text.logprobs"]},
    "schema": {"text": {"format": {"type": "json_schema", "name": "it", "schema": SCHEMA}}},
    "tool": {"tools": [TOOL], "tool_choice": "required"},
    "penalties": {"presence_penalty": 0.7, "repeat_penalty": 1.3, "dry_multiplier": 0.8},
    "mirostat": {"mirostat": 2, "mirostat_tau": 3.0},
    "instructions": {"instructions": "Be brief.", "metadata": {"a": "b"}},
    "unseeded": {"seed": None},
    "picture": {"input": [{"role": "user", "content": [{"type": "input_text", "text": HELLO}, SEEN]}]},
}


@contextmanager
def lead_at(
    url: str, *, step_s: float = 0.002, group: str = "toy", template: str | None = None
) -> Generator[Lead]:
    model, pictures = FakeModel(seed=3, eog_rate=0.0), Pictures(Painter())
    backend = FakeBackend(model, sees=True, n_ctx=1 << 14, n_cells=1 << 15, step_s=step_s)
    backend.vocab = cast(Any, PictureVocabulary(backend.vocab, pictures))
    settings = read(LeadSettings, ["--redis", url, "--pool", POOL])
    background = BackgroundReplies()
    door = ClientPolicy(Edge(access=Access(["sk-anna", "sk-bert"])), None, 0)
    replies = store_of(settings, background, group)
    beside: dict[str, Any] = {
        "replies": replies,
        "background": background,
        "door": door,
        "pictures": pictures,
    }
    with serving(backend, template=template, **beside) as lead:
        yield lead


def asked(kind: str) -> dict[str, Any]:
    plain = {"input": HELLO, "temperature": 1.0, "seed": 5, "max_output_tokens": 150}
    return {name: value for name, value in {**plain, **KINDS[kind]}.items() if value is not None}


def begun(lead: Lead, kind: str, n_deltas: int, **more: Any) -> list[dict[str, Any]]:
    """Begin a background response, and return its events up to the one with the n_deltas-th delta."""
    seen = list[dict[str, Any]]()
    body = {**asked(kind), "background": True, "stream": True, **more}
    with httpx.stream("POST", f"{lead.url}/v1/responses", json=body, headers=ANNA, timeout=60) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: "):
                seen.append(json.loads(line[6:]))
            if sum(one["type"].endswith(".delta") for one in seen) >= n_deltas:
                return seen
    return seen


def rest(lead: Lead, seen: list[dict[str, Any]], headers: dict[str, str] = ANNA) -> list[dict[str, Any]]:
    id, last = seen[0]["response"]["id"], seen[-1]["sequence_number"]
    query = f"stream=true&starting_after={last}" if last >= 0 else "stream=true"
    told = httpx.get(f"{lead.url}/v1/responses/{id}?{query}", headers=headers, timeout=60)
    return [json.loads(line[6:]) for line in told.text.splitlines() if line.startswith("data: ")]


def said(events: list[dict[str, Any]]) -> tuple[str, list[Any]]:
    """Return all deltas, and their logprobs."""
    deltas = [one for one in events if one["type"].endswith(".delta")]
    return "".join(one["delta"] for one in deltas), [p for one in deltas for p in one.get("logprobs", ())]


def output_of(response: dict[str, Any]) -> list[Any]:
    """Return what a response says, without its ids."""
    return [{name: one for name, one in item.items() if "id" not in name} for item in response["output"]]


def check_whole(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Check that the events have no gap and fit the response, and return it."""
    assert [one["sequence_number"] for one in events] == list(range(len(events)))
    response = events[-1]["response"]
    items = [one["item"] for one in events if one["type"] == "response.output_item.done"]
    assert items == response["output"]
    added = [one["item"]["id"] for one in events if one["type"] == "response.output_item.added"]
    assert added == [item["id"] for item in response["output"]]
    return response


N_SEEN = 8  # events of a client whose lead then does not reach Redis


@contextmanager
def cut_off(lead: Lead) -> Generator[None]:
    """Let a lead not reach Redis in this block."""

    class Unreachable:
        def __getattr__(self, _: str) -> Any:
            raise redis.ConnectionError("cut off")

    link: Any = cast(RedisStore, lead.services.replies)._link  # pyright: ignore[reportPrivateUsage]
    reached, link._client = link._client, Unreachable()
    try:
        yield
    finally:
        link._client = reached


@pytest.mark.parametrize("kind", KINDS)
def test_other_lead_goes_on(url: str, kind: str):
    with lead_at(url) as second, ExitStack() as first_ends:
        first = first_ends.enter_context(lead_at(url))
        whole = None
        if "seed" in asked(kind):
            plain = httpx.post(f"{second.url}/v1/responses", json=asked(kind), headers=ANNA, timeout=60)
            whole = output_of(plain.json())
        seen = begun(first, kind, 3)
        first_ends.close()  # it hands its replies over
        seen += rest(second, seen)
        response = check_whole(seen)
        assert response["status"] in ("completed", "incomplete")
        assert whole is None or output_of(response) == whole
        text, logprobs = said(seen)
        [item] = response["output"]
        if item["type"] == "message":
            assert text == item["content"][0]["text"]
            assert logprobs == item["content"][0]["logprobs"]
        else:
            assert text == item["arguments"]
        assert response["usage"]["output_tokens"] <= 150
        stored = httpx.get(f"{second.url}/v1/responses/{response['id']}", headers=ANNA).json()
        assert stored == response
        second.until_idle()


@pytest.mark.parametrize("summary", [None, "auto"])
def test_thoughts_go_on(url: str, summary: str | None):
    """The template begins them, and the toy never ends them."""
    template = THINKING.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
    thoughts = {"reasoning": {"summary": summary}}
    with lead_at(url, template=template) as second, ExitStack() as first_ends:
        first = first_ends.enter_context(lead_at(url, template=template))
        plain = httpx.post(f"{second.url}/v1/responses", json={**asked("plain"), **thoughts}, headers=ANNA)
        seen = begun(first, "plain", 3, **thoughts)
        first_ends.close()
        seen += rest(second, seen)
        response = check_whole(seen)
        assert [item["type"] for item in response["output"]] == ["reasoning"]
        assert output_of(response) == output_of(plain.json())
        told = response["usage"]["output_tokens_details"]["reasoning_tokens"]
        assert told == plain.json()["usage"]["output_tokens_details"]["reasoning_tokens"] > 100


def test_conversation_gets_the_reply_once(url: str):
    with lead_at(url) as second, ExitStack() as first_ends:
        first = first_ends.enter_context(lead_at(url))
        conversations = f"{second.url}/v1/conversations"
        id = httpx.post(conversations, json={}, headers=ANNA).json()["id"]
        seen = begun(first, "plain", 3, conversation=id)
        first_ends.close()
        seen += rest(second, seen)
        items = httpx.get(f"{conversations}/{id}/items", headers=ANNA).json()["data"]
        assert [item["role"] for item in items] == ["assistant", "user"]
        assert items[:1] == check_whole(seen)["output"]


def test_same_lead_goes_on_after_a_restart(url: str):
    with lead_at(url) as lead:
        seen = begun(lead, "plain", 3)
    with lead_at(url, step_s=0.0) as lead:
        seen += rest(lead, seen)
        check_whole(seen)


def test_late_reply_is_left_too(url: str):
    chat = {"messages": [{"role": "user", "content": HELLO}], "stream": True, "max_tokens": 9}
    with lead_at(url) as second, lead_at(url) as first:
        first.services.background.hand_over(first.services.replies)
        named = {"X-Conversation-Id": "0b5c", **ANNA}
        assert httpx.post(f"{first.url}/v1/chat/completions", json=chat, headers=named).status_code == 503
        body = {**asked("plain"), "background": True}
        queued = httpx.post(f"{first.url}/v1/responses", json=body, headers=ANNA).json()
        seen = [{"response": queued, "sequence_number": -1}]
        assert check_whole(rest(second, seen))["status"] == "incomplete"  # its 150 tokens were made


def test_reply_left_before_stored_is_found(url: str, monkeypatch: pytest.MonkeyPatch):
    """The lead drains before its link to Redis has done anything for the reply."""
    monkeypatch.setattr(redis_store, "FLUSH_TIMEOUT_S", 0.01)  # so that the answer does not wait for the link
    with lead_at(url, group="other") as second, lead_at(url) as first:
        first.services.background.hand_over(first.services.replies)
        with frozen(cast(RedisStore, first.services.replies)):
            body = {**asked("plain"), "background": True}
            queued = httpx.post(f"{first.url}/v1/responses", json=body, headers=ANNA).json()
        found = f"{second.url}/v1/responses/{queued['id']}"
        until(lambda: httpx.get(found, headers=ANNA).json() == queued, "it is not stored")


def test_other_key_gets_nothing_of_it(url: str):
    with lead_at(url) as second:
        with lead_at(url) as first:
            seen = begun(first, "plain", 2, max_output_tokens=ENDLESS)
        until(lambda: len(second.services.background), "nobody took it up")
        id = seen[0]["response"]["id"]
        one = f"{second.url}/v1/responses/{id}"
        for path in (one, f"{one}?stream=true"):
            assert httpx.get(path, headers=BERT).status_code == 404
        assert httpx.delete(one, headers=BERT).status_code == 404
        assert httpx.post(f"{one}/cancel", headers=BERT).status_code == 404
        assert httpx.post(f"{one}/cancel", headers=ANNA).json()["status"] == "cancelled"
        second.until_idle()


def test_lead_of_another_kin_leaves_it(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(log_writing, "AWAITED_MS", 1500)
    with lead_at(url, group="other") as second:
        with lead_at(url) as first:
            seen = begun(first, "plain", 2, max_output_tokens=ENDLESS)
        seen += rest(second, seen)
        assert seen[-1]["type"] == "response.failed"
        assert "no other server continues it" in seen[-1]["response"]["error"]["message"]
        assert [one["sequence_number"] for one in seen] == list(range(len(seen)))


def test_partitioned_lead_goes_on_apart(url: str, monkeypatch: pytest.MonkeyPatch):
    """Another lead takes the reply up; no client is given events of one as those of the other."""
    monkeypatch.setattr(log_writing, "LEASE_MS", 300)
    monkeypatch.setattr(redis_link, "PATIENCE_S", 1.0)
    with lead_at(url) as second, lead_at(url, step_s=0.03) as first:
        apart = list[dict[str, Any]]()
        body = {**asked("plain"), "background": True, "stream": True}
        asking = httpx.stream("POST", f"{first.url}/v1/responses", json=body, headers=ANNA, timeout=60)
        with ExitStack() as cut, asking as stream:
            for line in stream.iter_lines():
                apart += [json.loads(line[6:])] if line.startswith("data: ") else []
                if len(apart) == N_SEEN:
                    cut.enter_context(cut_off(first))
            whole = [*apart[:N_SEEN], *rest(second, apart[:N_SEEN])]
            check_whole(whole)
            numbers = [one["sequence_number"] for one in apart]
            n = sum(number < UNSTORED for number in numbers)
            assert numbers == [*range(n), *range(UNSTORED + n, UNSTORED + len(numbers))]
            assert "no longer be stored" in apart[-1]["response"]["warnings"][0]
            assert said(apart) == said(whole)
            assert rest(first, apart[:-3]) == apart[-3:]
            [refused] = rest(second, apart[:-3])
            assert "never stored" in refused["message"]


def test_lost_server_is_told_and_holds_nobody(server: Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(redis_link, "PATIENCE_S", 0.3)
    monkeypatch.setattr(redis_link, "PROBE_S", 0.1)
    monkeypatch.setattr(redis_store, "FLUSH_TIMEOUT_S", 0.1)
    with lead_at(server.url, step_s=0.02) as lead:
        url, seen = f"{lead.url}/v1/responses", list[dict[str, Any]]()
        body = {**asked("plain"), "background": True, "stream": True}
        with httpx.stream("POST", url, json=body, headers=ANNA, timeout=60) as stream:
            for line in stream.iter_lines():
                seen += [json.loads(line[6:])] if line.startswith("data: ") else []
                if len(seen) == N_SEEN:
                    server.kill()
        whole = seen[-1]["response"]
        assert "no longer be stored" in whole["warnings"][0]
        assert said(seen)[0] == output_of(whole)[0]["content"][0]["text"]
        assert httpx.get(f"{url}/{whole['id']}", headers=ANNA).json() == whole
        assert rest(lead, seen[:-3]) == seen[-3:]
        seen = begun(lead, "plain", 1000)
        assert "no longer be stored" in seen[-1]["response"]["warnings"][0]
        cancelled = httpx.post(url, json={**body, "stream": False}, headers=ANNA).json()
        told = httpx.post(f"{url}/{cancelled['id']}/cancel", headers=ANNA, timeout=20).json()
        assert told["status"] == "cancelled"
        lead.until_idle()


@pytest.mark.parametrize("picture", [False, True])
def test_conversation_stream_goes_on(url: str, picture: bool):
    name = {"X-Conversation-Id": "0b5c::duo", **ANNA}
    shown = {"type": "image_url", "image_url": {"url": SEEN["image_url"]}}
    body = {
        "messages": [{"role": "user", "content": [shown] if picture else HELLO}],
        "stream": True,
        "max_tokens": 150,
        "seed": 5,
        "temperature": 1.0,
        "n": 2,
        "logprobs": True,
        "stream_options": {"include_usage": True},
    }
    with lead_at(url) as second, ExitStack() as first_ends:
        first = first_ends.enter_context(lead_at(url))
        whole = httpx.post(f"{second.url}/v1/chat/completions", json=body, headers=ANNA, timeout=60).content
        seen = b""
        chat = f"{first.url}/v1/chat/completions"
        with httpx.stream("POST", chat, json=body, headers=name, timeout=60) as stream:
            for chunk in stream.iter_bytes():
                seen += chunk
                if len(seen) > 8000:
                    break
        first_ends.close()
        read = {"conv_id": "0b5c::duo", "from": str(len(seen))}
        seen += httpx.get(f"{second.url}/v1/stream", params=read, headers=ANNA, timeout=60).content
        assert _choices(seen) == _choices(whole)
        ids = {one["id"] for one in _parts(seen)}
        assert len(ids) == 1
        told = {"conversation_ids": ["0b5c"]}
        [stream_of_it] = httpx.post(f"{second.url}/v1/streams/lookup", json=told, headers=ANNA).json()
        assert (stream_of_it["is_done"], stream_of_it["total_bytes"]) == (True, len(seen))


def test_large_response_stays_with_one_lead(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(redis_documents, "MOST_DOCUMENT", 2000)
    monkeypatch.setattr(log_writing, "AWAITED_MS", 1500)
    with lead_at(url) as second, lead_at(url) as first:
        body = {**asked("plain"), "input": "x" * 3000, "background": True}
        queued = httpx.post(f"{first.url}/v1/responses", json=body, headers=ANNA).json()
        assert "too large to be shared" in queued["warnings"][0]
        whole = check_whole(rest(first, [{"response": queued, "sequence_number": -1}]))
        assert whole["warnings"] == queued["warnings"]
        path = f"/v1/responses/{queued['id']}"
        assert httpx.get(first.url + path, headers=ANNA).json() == whole
        assert httpx.get(second.url + path, headers=ANNA).status_code == 404


def test_recipe_counts_for_its_key(url: str):
    """Else streams with long prompts would fill Redis, since what is stored of them besides is short."""
    bounds = KeptBounds(most_bytes=5000)

    async def n_found() -> int:
        store = RedisStore(url, POOL, bounds, LeadGroup("toy", "a"))
        for i in range(9):
            store.begin_log(Owner("anna"), f"chat_{i}", {"body": "x" * 1500})
            store.put(Owner("anna"), StoredResponse({"id": f"chat_{i}"}, ()))
            await store.flush()
        found = [await store.get("anna", f"chat_{i}") for i in range(9)]
        await store.close()
        return sum(one is not None for one in found)

    assert asyncio.run(n_found()) == 3


def _parts(stream: bytes) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in stream.splitlines() if line.startswith(b"data: {")]


def _choices(stream: bytes) -> tuple[Any, ...]:
    texts, logprobs, ends = ["", ""], [list[Any](), list[Any]()], ["", ""]
    assert stream.endswith(b"data: [DONE]\n\n")
    for part in _parts(stream):
        for choice in part["choices"]:
            at = choice["index"]
            texts[at] += choice["delta"].get("content") or ""
            logprobs[at] += (choice["logprobs"] or {}).get("content", ())
            ends[at] += choice["finish_reason"] or ""
    usage = _parts(stream)[-1]["usage"]
    return texts, logprobs, ends, usage["completion_tokens"], usage["prompt_tokens"]
