"""What a lead's flags about its model come to, over HTTP: names, defaults, a template, embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from server.llama.devices import has_rpc
from tests.contract.contract import validate
from tests.process.duo import Duo, run, until

pytestmark = [pytest.mark.model, pytest.mark.timeout(180)]

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
HELLO: list[Any] = [{"role": "user", "content": "What is a list?"}]


@pytest.fixture(scope="module")
def duo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Duo]:
    folder = tmp_path_factory.mktemp("duo")
    template = folder / "template.jinja"
    template.write_text(TEMPLATE)
    names = ("--alias", "one,two", "--chat-template-file", str(template))
    defaults = ("--seed", "7", "-n", "6", "--temp", "1", "--draft-max", "0")
    kinds = ("-ctk", "q8_0", "-ctv", "q8_0", "-fa", "auto", "--embeddings")
    sizes = ("--threads", "1", "-c", "512", "-np", "1")
    with Duo(folder, "serve", *sizes, *names, *defaults, *kinds) as one:
        one.wait_until_ready()
        yield one


@pytest.fixture
def client(duo: Duo) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{duo.url}/v1", api_key="none") as one:
        yield one


def test_names(client: openai.OpenAI):
    assert [model.id for model in client.models.list()] == ["one"]
    assert client.models.retrieve("two").id == "one"
    reply = client.chat.completions.create(model="two", messages=HELLO)
    assert reply.model == "one"


def test_default_seed_and_length_apply(client: openai.OpenAI):
    first, second = (client.chat.completions.create(model="one", messages=HELLO) for _ in range(2))
    other = client.chat.completions.create(model="one", messages=HELLO, seed=8, max_tokens=20)
    assert first.choices[0].message.content == second.choices[0].message.content
    assert first.usage is not None
    assert first.usage.completion_tokens <= 6
    assert other.choices[0].message.content != first.choices[0].message.content


def test_the_template_of_the_file(duo: Duo):
    prompt = httpx.post(f"{duo.url}/apply-template", json={"messages": HELLO}).json()["prompt"]
    assert prompt == "user: What is a list?\nassistant:"
    props = httpx.get(f"{duo.url}/props").json()
    validate("Props", props)
    assert props["chat_template"] == TEMPLATE
    assert props["model_path"] == "duo-tiny-q8_0.gguf"


def test_the_model_tells_what_it_is(duo: Duo):
    [model] = httpx.get(f"{duo.url}/v1/models").json()["data"]
    validate("Model", model)
    assert model["meta"]["quantization"] == "Q8_0"
    assert model["meta"]["n_vocab"] == 8192
    assert model["meta"]["aliases"] == ["two"]


def test_embeddings_of_the_same_weights(client: openai.OpenAI):
    texts = ["How do I sort a list in Python?", "How can I sort a Python list?", "Paris, early autumn rain"]
    reply = client.embeddings.create(model="one", input=texts)
    one, same, other = (item.embedding for item in reply.data)
    assert sum(x * y for x, y in zip(one, one, strict=True)) == pytest.approx(1, abs=1e-4)
    assert sum(x * y for x, y in zip(one, same, strict=True)) > sum(
        x * y for x, y in zip(one, other, strict=True)
    )


def test_long_prompt_is_400(duo: Duo):
    body = {"messages": [{"role": "user", "content": "word " * 3000}]}
    response = httpx.post(f"{duo.url}/v1/chat/completions", json=body, timeout=20)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert "maximum context length is 512 tokens" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--chat-template-file", "absent.jinja"], "--chat-template-file: absent.jinja cannot be read"),
        (["--hf-repo", "model"], "--hf-repo is USER/MODEL"),
        (["--rpc", "127.0.0.1:1"], "cannot be reached" if has_rpc() else "has no RPC backend"),
        (["--lora", "absent.gguf"], "no LoRA adapter at absent.gguf"),
    ],
)
def test_impossible_flags_fail_in_line(flags: list[str], said: str, monkeypatch: pytest.MonkeyPatch):
    if "--hf-repo" in flags:
        monkeypatch.delenv("DUO_MODEL")
    ended = run("serve", "--port", "0", *flags)
    assert ended.returncode == 1
    assert said in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_undrafted_lead_measures_its_padding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "measured"))
    with Duo(tmp_path, "serve", "--threads", "1", "-c", "1024", "-np", "3", "--draft-max", "0") as one:
        one.wait_until_ready()
        kept = tmp_path / "measured"
        until(lambda: [*kept.rglob("steps-*.json")], 60, "no step times are kept")
        health = one.health()
    assert health
    assert (
        {"1"} <= set(health["gate"]["step_ms"]) <= {"1", "2", "3", "4", "5", "6"}
    )  # as far as there was time
