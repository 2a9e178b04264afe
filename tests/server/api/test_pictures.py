"""Pictures in chats over HTTP: seen where there is a projector, and refused in one precise line elsewhere."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import httpx
import pytest

from server.llama.backend import PICTURE_IDS
from server.pictures.registry import Pictures
from server.pictures.vocabulary import PictureVocabulary
from tests.contract.contract import validate
from tests.fake_backend import FakeBackend
from tests.http_lead import Lead, serving
from tests.server.pictures.drawn import Painter, drawn, file_of, url_of

N = 22  # positions of a picture
RED, BLUE = (url_of(file_of(drawn(colour))) for colour in ("red", "blue"))


def seen(url: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def asking(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


@contextmanager
def seeing(painter: Painter | None = None, **more: Any) -> Generator[Lead]:
    pictures, backend = Pictures(painter or Painter()), FakeBackend(sees=True, n_ctx=512)
    backend.vocab = cast(Any, PictureVocabulary(backend.vocab, pictures))
    with serving(backend, pictures=pictures, **more) as lead:
        yield lead
        lead.until_idle()


@pytest.fixture(scope="module")
def lead() -> Generator[Lead]:
    with seeing() as one:
        yield one


def post(lead: Lead, messages: Any, path: str = "/v1/chat/completions", **fields: Any) -> httpx.Response:
    body = {"messages": messages, "max_tokens": 8, **fields}
    return httpx.post(lead.url + path, json=body, timeout=20)


def answered(lead: Lead, messages: Any, **fields: Any) -> dict[str, Any]:
    response = post(lead, messages, **fields)
    assert response.status_code == 200, response.text
    validate("ChatCompletion", response.json())
    return response.json()


def refusal(lead: Lead, messages: Any, **fields: Any) -> dict[str, Any]:
    response = post(lead, messages, **fields)
    assert response.status_code == 400, response.text
    return response.json()["error"]


def said(answer: dict[str, Any]) -> str:
    return answer["choices"][0]["message"]["content"]


def test_pictures_are_part_of_prompts(lead: Lead):
    with_one = answered(lead, asking(text("What is "), seen(RED), text(" here?")))
    without = answered(lead, asking(text("What is "), text(" here?")))
    assert with_one["usage"]["prompt_tokens"] == without["usage"]["prompt_tokens"] + N + len("\n")
    other = answered(lead, asking(text("What is "), seen(BLUE), text(" here?")))
    assert said(with_one) != said(other)
    again = answered(lead, asking(text("What is "), seen(RED), text(" here?")))
    assert said(again) == said(with_one)


def test_next_turns_are_cached(lead: Lead):
    first = asking(seen(RED), text("Once more"))
    reply = answered(lead, first)
    lead.until_idle()
    turn = [
        *first,
        {"role": "assistant", "content": said(reply)},
        *asking(text("And "), seen(BLUE), text("?")),
    ]
    later = answered(lead, turn)
    n_told = reply["usage"]["prompt_tokens"] + reply["usage"]["completion_tokens"]
    assert later["usage"]["prompt_tokens_details"]["cached_tokens"] >= n_told - 1


def test_tools_may_return_pictures(lead: Lead):
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    history = [
        *asking(text("Look.")),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [text("There:"), seen(RED)]},
    ]
    one = answered(lead, history)
    history[-1]["content"] = [text("There:"), seen(BLUE)]
    assert said(answered(lead, history)) != said(one)


def test_several_choices_share_a_picture():
    painter = Painter()
    with seeing(painter) as lead:
        reply = answered(lead, asking(seen(RED), text("twice"), seen(RED), text("!")), n=3, temperature=1)
    assert len(reply["choices"]) == 3
    assert painter.n_calls == 1


@pytest.mark.parametrize(
    ("parts", "param", "why"),
    [
        ([seen("https://a.b/c.png")], "messages.0.content.0.image_url", "are not fetched: send a data URL"),
        (
            [text("a"), seen(url_of(file_of(drawn())[:40]))],
            "messages.0.content.1.image_url",
            "not a whole picture",
        ),
        ([{"type": "image_url"}], "messages.0.content.0.image_url", "are not fetched"),
        ([{"type": "image_url", "image_url": 1}], "messages.0.content.0.image_url", "are not fetched"),
        ([{"type": "input_audio"}], "messages.0.content.0.type", "this model reads text and pictures only"),
        ([seen(url) for url in (RED, BLUE)] * 20, "messages", "exceeds the available context size"),
    ],
    ids=lambda given: str(given)[:40],
)
def test_other_parts_are_refused(lead: Lead, parts: list[Any], param: str, why: str):
    error = refusal(lead, asking(*parts, text("?")))
    assert error["param"] == param
    assert why in error["message"]


def test_encoding_stops_at_the_context():
    painter = Painter(n=200)
    urls = [url_of(file_of(drawn((shade, 0, 0)))) for shade in range(9)]  # pyright: ignore[reportArgumentType]
    with seeing(painter) as lead:
        refusal(lead, asking(*map(seen, urls), text("?")))
    assert painter.n_calls == 2, "those that the context has room for"


def test_contradictions_are_refused(lead: Lead):
    error = refusal(lead, asking(seen(RED), text("?")), context_shift=True)
    assert error["param"] == "context_shift"
    with seeing(template="{% for m in messages %}{{ m['content'] }}{% endfor %}") as bare:
        error = refusal(bare, asking(text("?"), seen(RED)))
        assert "the prompt ends with a picture" in error["message"]
        assert post(bare, asking(text("?"), seen(RED)), "/v1/precompute").json()["prompt_tokens"] == 2


def test_only_texts_outlast_the_context():
    """As in llama-server, whose --context-shift has no effect where pictures are."""
    endless = {"max_tokens": 600, "ignore_eos": True}
    with seeing(context_shift=True) as lead:
        with_one = answered(lead, asking(seen(RED), text("?")), **endless)
        without = answered(lead, asking(text("?")), **endless)
    assert with_one["choices"][0]["finish_reason"] == without["choices"][0]["finish_reason"] == "length"
    assert with_one["usage"]["total_tokens"] == 512
    assert without["usage"]["completion_tokens"] == 600


def test_templates_must_show_pictures():
    with seeing(template="{% for m in messages %}{{ m['content'][:4] }}{% endfor %}") as lead:
        error = refusal(lead, asking(text("long enough "), seen(RED), text("?")))
    assert "the model's chat template does not show a picture" in error["message"]


def test_clients_cannot_name_pictures(lead: Lead):
    shown = post(lead, asking(text("a"), seen(RED), text("b")), "/apply-template").json()["prompt"]
    assert "duoPicture" in shown
    other = seeing()
    with other as stranger:
        counted = httpx.post(f"{stranger.url}/tokenize", json={"content": shown}, timeout=20).json()
    assert max(counted["tokens"]) < PICTURE_IDS
    response = httpx.post(f"{lead.url}/v1/completions", json={"prompt": [PICTURE_IDS + 1]}, timeout=20)
    assert response.status_code == 400


def test_counting_and_precomputing_see_pictures(lead: Lead):
    chat = asking(text("Count "), seen(RED), text(" this"))
    counted = post(lead, chat, "/v1/chat/completions/input_tokens").json()["input_tokens"]
    assert counted == answered(lead, chat)["usage"]["prompt_tokens"]
    fresh = asking(text("Precompute "), seen(BLUE))
    assert post(lead, fresh, "/v1/precompute").json()["completed"]
    assert answered(lead, [{"role": "user", "content": [*fresh[0]["content"], text("?")]}])


def test_modalities_are_told(lead: Lead):
    assert httpx.get(f"{lead.url}/props", timeout=20).json()["modalities"]["vision"] is True
    [card] = httpx.get(f"{lead.url}/v1/models", timeout=20).json()["data"]
    assert card["architecture"]["input_modalities"] == ["text", "image"]


def message_of(url: str) -> dict[str, Any]:
    """Return a picture in Anthropic's form."""
    media, _, data = url.removeprefix("data:").partition(";base64,")
    return {"type": "image", "source": {"type": "base64", "media_type": media, "data": data}}


def test_messages_see_pictures(lead: Lead):
    shown = [text("What is "), seen(RED), text(" here?")]
    as_chat = post(lead, asking(*shown), "/v1/chat/completions/input_tokens").json()
    system = {"system": "", "model": "toy"}
    told = asking(shown[0], message_of(RED), shown[2])
    counted = post(lead, told, "/v1/messages/count_tokens", **system).json()
    assert counted["input_tokens"] == as_chat["input_tokens"]
    answer = post(lead, told, "/v1/messages", **system)
    assert answer.status_code == 200, answer.text
    use: dict[str, Any] = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    turns: list[Any] = [*asking(text("Look.")), {"role": "assistant", "content": [use]}]
    texts = set[str]()
    for url in (RED, BLUE):
        result = {"type": "tool_result", "tool_use_id": "t1", "content": [message_of(url)], "is_error": True}
        reply = post(lead, [*turns, {"role": "user", "content": [result]}], "/v1/messages", **system).json()
        texts.add(str(reply["content"]))
    assert len(texts) == 2


def test_messages_refuse_other_pictures(lead: Lead):
    remote = {"type": "image", "source": {"type": "url", "url": "https://a.b/c.png"}}
    document: dict[str, Any] = {"type": "document", "source": {}}
    for block, why in (
        (remote, "messages: pictures are not fetched"),
        ({"type": "image"}, "messages: pictures are not fetched"),
        (document, "`document`: this model reads text and pictures only"),
    ):
        response = post(lead, asking(text("?"), block, text("!")), "/v1/messages", model="toy")
        assert response.status_code == 400
        assert why in response.json()["error"]["message"]


def respond(lead: Lead, items: Any, **fields: Any) -> httpx.Response:
    body = {"input": items, "max_output_tokens": 8, **fields}
    return httpx.post(f"{lead.url}/v1/responses", json=body, timeout=20)


def test_responses_see_pictures(lead: Lead):
    shown = {"type": "input_image", "image_url": RED}
    items = asking({"type": "input_text", "text": "What is "}, shown, {"type": "input_text", "text": "?"})
    first = respond(lead, items).json()
    chat = asking(text("What is "), seen(RED), text("?"))
    counted = post(lead, chat, "/v1/chat/completions/input_tokens").json()
    assert first["usage"]["input_tokens"] == counted["input_tokens"]
    later = respond(lead, "And now?", previous_response_id=first["id"]).json()
    assert later["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    listed = httpx.get(f"{lead.url}/v1/responses/{first['id']}/input_items", timeout=20).json()
    assert RED in str(listed)
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    texts = set[str]()
    for url in (RED, BLUE):
        picture = {"type": "input_image", "image_url": url}
        output = {"type": "function_call_output", "call_id": "c1", "output": [picture]}
        texts.add(str(respond(lead, [*asking(text("Look.")), call, output]).json()["output"][0]["content"]))
    assert len(texts) == 2


def test_responses_refuse_other_pictures(lead: Lead):
    for part, param in (
        ({"type": "input_image", "image_url": "https://a.b/c.png"}, "input"),
        ({"type": "input_image", "file_id": "file-1"}, "input"),
        ({"type": "input_file"}, "input.0.content.0.type"),
    ):
        response = respond(lead, asking(part))
        assert response.status_code == 400
        assert response.json()["error"]["param"] == param
