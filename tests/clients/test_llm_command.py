"""The `llm` command line, with duo as one of its extra models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.clients.written import writing
from tests.http_lead import Lead

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
FUNCTION = """
def weather(city: str) -> str:
    "The weather of a city."
    return f"a clear sky over {city}"
"""
Llm = Callable[..., str]


@pytest.fixture
def llm(tmp_path: Path) -> Callable[[str], Llm]:
    """Return a function that runs the command on a server, with a directory of the test's own."""

    def on(url: str) -> Llm:
        model = {
            "model_name": "toy",
            "api_base": f"{url}/v1",
            "supports_schema": True,
            "supports_tools": True,
        }
        models: list[dict[str, Any]] = [
            {"model_id": "duo", **model},
            {"model_id": "duo-responses", "responses": True, **model},
            {"model_id": "duo-completion", "completion": True, **model},
        ]
        (tmp_path / "extra-openai-models.yaml").write_text(yaml.safe_dump(models))

        def run(*arguments: str) -> str:
            known = {k: v for k, v in os.environ.items() if not k.upper().endswith("_PROXY")}
            command = [sys.executable, "-m", "llm", *arguments]
            environment = {**known, "LLM_USER_PATH": str(tmp_path), "LLM_LOAD_PLUGINS": ""}
            done = subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
            )
            assert not done.returncode, done.stderr
            return done.stdout.removesuffix("\n")

        return run

    return on


def test_a_prompt_and_what_follows_it(llm: Callable[[str], Llm]):
    with writing("Hello, Anna.", "Anna.") as lead:
        run = llm(lead.url)
        assert run("-m", "duo", "-s", "be brief", "I am Anna.") == "Hello, Anna."
        assert run("-c", "Who am I?", "-m", "duo", "--no-stream", "-o", "temperature", "0.5") == "Anna."
    assert "be brief" in lead.prompts[0]
    assert "I am Anna." in lead.prompts[1]
    assert "Hello, Anna." in lead.prompts[1]
    assert lead.requests[1].sampling.temperature == 0.5


@pytest.mark.parametrize("model", ["duo", "duo-responses"])
def test_a_schema(llm: Callable[[str], Llm], lead: Lead, model: str):
    schema = {"type": "object", "properties": {"wild": {"type": "boolean"}}, "required": ["wild"]}
    said = llm(lead.url)(
        "-m", model, "--schema", json.dumps(schema | {"additionalProperties": False}), "a pet"
    )
    assert set(json.loads(said)) == {"wild"}


@pytest.mark.parametrize("model", ["duo", "duo-responses"])
def test_tools(llm: Callable[[str], Llm], model: str):
    with writing(f"Let me see.\n{CALL}", "Clear.") as lead:
        assert "Clear." in llm(lead.url)("-m", model, "--functions", FUNCTION, "The weather in Rome?")
    assert CALL in lead.prompts[1]
    assert "<tool_response>\na clear sky over Rome\n</tool_response>" in lead.prompts[1]


def test_a_legacy_completion(llm: Callable[[str], Llm]):
    with writing(" there was a king") as lead:
        assert llm(lead.url)("-m", "duo-completion", "Once").strip() == "there was a king"
