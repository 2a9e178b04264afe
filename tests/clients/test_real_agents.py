"""Real agents, started as their users start them, over replies written beforehand.

Each thinks, calls a tool, gets its result and answers; is shown a picture; is told that a prompt is too long.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.clients.real_agents import LISTED, Home, call, conversing, installed

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
UNSEEN = "[an image that this model cannot see: it reads text only]"
NEW = 32  # most tokens of the turn before that the next prompt may lack


@dataclass(frozen=True, slots=True)
class Agent:
    """How to start an agent, and the names of its tools."""

    start: Callable[..., Any]
    """Runs it in a home, with a server's URL and what the user says."""
    command: str
    """Its reply that calls a command: `echo hi from here`."""
    look: Callable[[Path], str]
    """Its reply that looks at a picture."""
    seen: str = UNSEEN
    """What the model reads of the picture."""


def codex(home: Home, url: str, said: str) -> Any:
    provider = f'name = "duo"\nbase_url = "{url}/v1"\n'
    named = 'model = "default"\nmodel_provider = "duo"\n'
    home.write(".codex/config.toml", f"{named}[model_providers.duo]\n{provider}")
    alone = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    return home.run("codex", "exec", *alone, said)


def claude(home: Home, url: str, said: str) -> Any:
    return home.run(
        "claude",
        *("-p", said, "--allowedTools", "Bash,Read"),
        ANTHROPIC_BASE_URL=url,
        ANTHROPIC_AUTH_TOKEN="none",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
    )


def opencode(home: Home, url: str, said: str) -> Any:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{url}/v1", "apiKey": "none"},
        "models": {"default": {"name": "duo"}},
    }
    settings = {
        "provider": {"duo": provider},
        "model": "duo/default",
        "autoupdate": False,
        "share": "disabled",
    }
    home.write(".config/opencode/opencode.json", json.dumps(settings))
    return home.run(
        "opencode", "run", said, OPENCODE_DISABLE_MODELS_FETCH="1", OPENCODE_DISABLE_AUTOUPDATE="1"
    )


def pi(home: Home, url: str, said: str, *how: str) -> Any:
    model = {"id": "default", "contextWindow": 131072, "maxTokens": 8192, "input": ["text", "image"]}
    provider = {
        "baseUrl": f"{url}/v1",
        "api": "openai-completions",
        "apiKey": "none",
        "models": [model],
    }
    home.write(".pi/agent/models.json", json.dumps({"providers": {"duo": provider}}))
    return home.run("pi", "--provider", "duo", "--model", "default", *(how or ("-p",)), said, PI_OFFLINE="1")


AGENTS = {
    "codex": Agent(
        codex,
        call("exec_command", cmd="echo hi from here"),
        lambda picture: call("view_image", path=str(picture)),
    ),
    "claude": Agent(
        claude,
        call("Bash", command="echo hi from here", description="greets"),
        lambda picture: call("Read", file_path=str(picture)),
    ),
    "opencode": Agent(
        opencode,
        call("bash", command="echo hi from here", description="greets"),
        lambda picture: call("read", filePath=str(picture)),
        "this model does not support image input",  # its own words
    ),
    "pi": Agent(
        pi,
        call("bash", command="echo hi from here"),
        lambda picture: call("read", path=str(picture)),
    ),
}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path, installed())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(AGENTS))
def test_an_agent_calls_a_tool_and_answers(home: Home, name: str):
    agent = AGENTS[name]
    with conversing(agent.command, "It greets you.") as lead:
        ended = agent.start(home, lead.url, "Greet me by a command")
        assert "It greets you." in ended.stdout, ended
        assert ended.returncode == 0, ended
        first, second = lead.prompts
        assert "Greet me by a command" in first
        assert "hi from here" in second.rpartition("I look.")[2]
        assert lead.n_new(1) <= NEW


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(AGENTS))
def test_an_agent_looks_at_a_picture(home: Home, name: str):
    agent, picture = AGENTS[name], home.write("project/dot.png", PNG)
    with conversing(agent.look(picture), "I see a dot.") as lead:
        ended = agent.start(home, lead.url, "What is in dot.png?")
        assert "I see a dot." in ended.stdout, ended
        assert agent.seen in lead.prompts[1]
        assert lead.prompts[1].startswith(lead.prompts[0])  # some show a picture as the user's words


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(AGENTS))
def test_agent_reports_a_long_prompt(home: Home, name: str):
    with conversing(n_ctx=2000) as lead:
        # pi prints nothing: it takes the error for what it is and shortens the conversation, in vain
        how = ("--mode", "json") if name == "pi" else ()
        ended = AGENTS[name].start(home, lead.url, "Greet me", *how)
        assert not lead.requests
        told = (ended.stdout + ended.stderr).lower()
        assert "context" in told or "too long" in told, ended
        assert name != "pi" or '"compaction_start","reason":"overflow"' in told, ended


@pytest.mark.timeout(300)
def test_ai_sdk_refers_to_stored(home: Home):
    script = home.write("project/ai_sdk.mjs", (LISTED / "ai_sdk.mjs").read_text())
    (script.parent / "node_modules").symlink_to(home.agents / "node_modules")
    with conversing(call("greet", whom="Anna"), "She is greeted. ", "And so is he.") as lead:
        ended = home.run("node", script.name, f"{lead.url}/v1")
        assert ended.stdout == "She is greeted. And so is he.\n", ended
        assert "hi from here, Anna" in lead.prompts[1]
        assert lead.n_new(1) <= NEW
        assert lead.prompts[2].startswith(lead.prompts[0])
        assert "She is greeted. " in lead.prompts[2]
