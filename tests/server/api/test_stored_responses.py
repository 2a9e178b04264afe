"""Responses that the server remembers: read, continued, deleted, and kept from others."""

from __future__ import annotations

import httpx
import openai
import pytest

from server.api.access import Access
from server.api.middleware import Edge
from server.lead.listening import ClientPolicy
from tests import http_lead
from tests.contract.contract import validate
from tests.fake_backend import FakeBackend, FakeModel
from tests.http_lead import Lead
from tests.server.api.test_responses import HELLO, answered, post


def test_stored_response_reads_and_deletes(client: openai.OpenAI, lead: Lead):
    for prefix in ("/v1", ""):
        body = answered(lead, max_output_tokens=5)
        path = f"{prefix}/responses/{body['id']}"
        assert httpx.get(lead.url + path).json() == body
        deleted = httpx.delete(lead.url + path)
        validate("ResponseDeleted", deleted.json())
        for gone in (httpx.get(lead.url + path), httpx.delete(lead.url + path)):
            assert gone.status_code == 404
            validate("Error", gone.json())
    kept = client.responses.create(model="toy", input=HELLO)
    assert client.responses.retrieve(kept.id).output_text == kept.output_text
    refused = httpx.get(f"{lead.url}/v1/responses/{kept.id}?stream=true")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "stream")
    client.responses.delete(kept.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(kept.id)
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.create(model="toy", input=HELLO, previous_response_id=kept.id)
    assert (caught.value.param, caught.value.code) == ("previous_response_id", "previous_response_not_found")


def test_store_false_is_honoured(lead: Lead):
    body = answered(lead, store=False)
    assert httpx.get(f"{lead.url}/v1/responses/{body['id']}").status_code == 404
    assert post(lead, previous_response_id=body["id"]).status_code == 404


def test_other_salt_finds_nothing(lead: Lead):
    body = answered(lead, cache_salt="mine")
    path = f"{lead.url}/v1/responses/{body['id']}"
    assert httpx.get(path).status_code == httpx.delete(path).status_code == 404
    assert post(lead, previous_response_id=body["id"], cache_salt="theirs").status_code == 404
    assert post(lead, previous_response_id=body["id"], cache_salt="mine").status_code == 200
    assert httpx.get(path, params={"cache_salt": "mine"}).status_code == 200


def test_other_key_finds_nothing():
    door = ClientPolicy(Edge(access=Access(["sk-anna", "sk-bert"])), None, 0)
    with http_lead.serving(FakeBackend(FakeModel(seed=3)), door=door) as lead:
        anna, bert = ({"authorization": f"Bearer {key}"} for key in ("sk-anna", "sk-bert"))
        url = f"{lead.url}/v1/responses"
        body = httpx.post(url, json={"input": HELLO}, headers=anna).json()
        path = f"{url}/{body['id']}"
        assert (
            httpx.get(path, headers=bert).status_code == httpx.delete(path, headers=bert).status_code == 404
        )
        goes_on = {"input": HELLO, "previous_response_id": body["id"]}
        assert httpx.post(url, json=goes_on, headers=bert).status_code == 404
        assert httpx.post(url, json=goes_on, headers=anna).status_code == 200
        assert httpx.get(path, headers=anna).json() == body
