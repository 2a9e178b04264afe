"""OpenAI's conversations through its SDK: what they hold, and what responses read and add."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response

from tests.contract.contract import validate
from tests.http_lead import Lead
from tests.server.api.test_responses import HELLO, answered, post

SAID: dict[str, Any] = {"type": "message", "role": "user", "content": "one"}


def test_conversation_lives_until_deleted(client: openai.OpenAI):
    made = client.conversations.create(metadata={"a": "b"}, items=[{"role": "user", "content": "hi"}])
    assert client.conversations.retrieve(made.id) == made
    changed = client.conversations.update(made.id, metadata={"c": "d"})
    assert (changed.metadata, changed.created_at) == ({"c": "d"}, made.created_at)
    [first] = client.conversations.items.list(made.id)
    added = client.conversations.items.create(made.id, items=[{"role": "user", "content": "more"}])
    listed = list(client.conversations.items.list(made.id, order="asc", limit=1))
    assert listed == [first, *added.data]
    assert client.conversations.items.retrieve(added.last_id, conversation_id=made.id) == added.data[0]
    assert client.conversations.items.delete(added.last_id, conversation_id=made.id) == changed
    assert list(client.conversations.items.list(made.id)) == [first]
    assert client.conversations.delete(made.id).deleted
    for gone in (client.conversations.retrieve, client.conversations.delete, client.conversations.items.list):
        with pytest.raises(openai.NotFoundError):
            gone(made.id)


def test_responses_read_and_extend_it(client: openai.OpenAI, lead: Lead):
    id = client.conversations.create().id
    asked: dict[str, Any] = {"model": "toy", "max_output_tokens": 20}
    turns: list[Response] = [
        client.responses.create(input="one", conversation=id, **asked),
        client.responses.create(input="two", conversation={"id": id}, **asked),
    ]
    assert turns[0].conversation
    assert turns[0].conversation.id == id
    listing = client.conversations.items.list(id, order="asc")
    told: list[dict[str, Any]] = [dict(item.to_dict()) for item in listing]
    texts = [item["content"][0]["text"] for item in told]
    assert texts == ["one", turns[0].output_text, "two", turns[1].output_text]
    listed = [item["content"][0]["text"] for item in input_items(lead, turns[1].id)]
    assert listed == texts[:3]
    apart = answered(lead, input=[*told[:3]], max_output_tokens=20)
    assert apart["output"][0]["content"][0]["text"] == turns[1].output_text
    assert apart["usage"]["input_tokens"] == turns[1].usage.input_tokens if turns[1].usage else False


def input_items(lead: Lead, id: str) -> list[dict[str, Any]]:
    return httpx.get(f"{lead.url}/v1/responses/{id}/input_items?order=asc").json()["data"]


def test_background_response_extends_it(client: openai.OpenAI):
    id = client.conversations.create().id
    asked: dict[str, Any] = {"model": "toy", "input": HELLO, "conversation": id, "max_output_tokens": 5}
    *_, last = client.responses.create(**asked, background=True, stream=True)
    assert last.type in ("response.completed", "response.incomplete")
    assert len(list(client.conversations.items.list(id))) == 2


def test_refusals_name_their_field(lead: Lead):
    id = httpx.post(f"{lead.url}/v1/conversations", json={}).json()["id"]
    stored = answered(lead, max_output_tokens=3)["id"]
    both = post(lead, conversation=id, previous_response_id=stored)
    assert (both.status_code, both.json()["error"]["param"]) == (400, "conversation")
    for name in ("conv_none", stored):
        missing = post(lead, conversation=name)
        assert (missing.status_code, missing.json()["error"]["param"]) == (404, "conversation")
    url = f"{lead.url}/v1/conversations/{id}"
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("/items", {"items": [SAID] * 21}),
        ("/items", {"items": []}),
        ("/items", {"items": [{"type": "item_reference", "id": "msg_1"}]}),
        ("", {"metadata": {str(i): "x" for i in range(17)}}),
    ]
    for path, body in wrong:
        refused = httpx.post(url + path, json=body)
        assert refused.status_code == 400
        validate("Error", refused.json())
    assert httpx.get(f"{url}/items/msg_none").status_code == 404
    assert httpx.delete(f"{url}/items/msg_none").status_code == 404
    assert httpx.get(f"{lead.url}/v1/responses/{id}").status_code == 404


def test_other_salt_finds_no_conversation(lead: Lead):
    url = f"{lead.url}/v1/conversations"
    id = httpx.post(url, json={"cache_salt": "mine"}).json()["id"]
    assert httpx.get(f"{url}/{id}").status_code == 404
    assert httpx.post(f"{url}/{id}/items", json={"items": [SAID]}).status_code == 404
    assert post(lead, conversation=id).status_code == 404
    assert httpx.post(f"{url}/{id}/items", json={"items": [SAID], "cache_salt": "mine"}).status_code == 200
    assert len(httpx.get(f"{url}/{id}/items?cache_salt=mine").json()["data"]) == 1
