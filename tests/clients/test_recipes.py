"""docs/clients.md: what it says to set is what duo has, and its Python and `llm` recipes run as written."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from server.api.services import Embedding, ModelCard
from server.errors import UsageError
from server.flags import read
from server.llama.embedding_worker import EmbeddingWorker
from server.settings import LeadSettings, UpSettings
from tests.clients.written import writing
from tests.toy_embedder import FakeEmbedder

PAGE = (Path(__file__).parent.parent.parent / "docs/clients.md").read_text()
COMMANDS = {"serve": LeadSettings, "up": UpSettings}
HERE = f"http://127.0.0.1:{LeadSettings.model_fields['port'].default}"


def blocks(language: str) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found
    return found


def commands() -> list[str]:
    """Return the duo commands of the page, in blocks and in the text."""
    typed = [line for block in blocks("sh") for line in block.splitlines()]
    return [line for line in typed + re.findall(r"`([^`\n]+)`", PAGE) if line.startswith("duo ")]


def ran(*command: str, **more: str) -> str:
    """Run Python with these variables and without proxies, and return its output."""
    known = {k: v for k, v in os.environ.items() if not k.upper().endswith("_PROXY")}
    done = subprocess.run(
        [sys.executable, *command],
        env=known | more,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert not done.returncode, done.stderr.decode()
    return done.stdout.decode()


def test_commands_are_those_of_duo():
    assert {line.split()[1] for line in commands()} == set(COMMANDS)
    for line in commands():
        name, *flags = shlex.split(line)[1:]
        read(COMMANDS[name], flags)
    with pytest.raises(UsageError):
        read(LeadSettings, ["--no-such-flag"])


def test_settings_are_valid_and_local():
    for block in blocks("yaml"):
        yaml.safe_load(block)
    for block in [block for language in ("yaml", "python", "js") for block in blocks(language)]:
        assert set(re.findall(r"https?:[^\s'\",})]+", block)) == {f"{HERE}/v1"}
    for block in blocks("sh"):
        for name, url in re.findall(r"(\w+)=(http\S+)", block):
            assert url == (HERE if name.startswith("ANTHROPIC") else f"{HERE}/v1"), name


def test_the_recipe_in_python():
    (recipe,) = blocks("python")
    with closing(EmbeddingWorker(FakeEmbedder())) as worker:
        embedding = Embedding(worker, ModelCard("toy-embedder", 1, 64, 1000, "a toy"))
        with writing("A sequence.", "It has an order.", embedding=embedding) as lead:
            told = ran("-c", recipe.replace(HERE, lead.url) + "print(len(vectors))")
    assert told.splitlines() == ["A sequence.", "It has an order.", "1"]


def test_the_recipe_of_llm(tmp_path: Path):
    (models,) = [block for block in blocks("yaml") if isinstance(yaml.safe_load(block), list)]
    (line,) = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("llm ")]
    settings: dict[str, Any] = {"LLM_USER_PATH": str(tmp_path), "LLM_LOAD_PLUGINS": ""}
    with writing("A sequence.") as lead:
        (tmp_path / "extra-openai-models.yaml").write_text(models.replace(HERE, lead.url))
        assert ran("-m", *shlex.split(line), **settings).strip() == "A sequence."
