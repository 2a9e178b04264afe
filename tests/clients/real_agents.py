"""Agents of others as their users start them, each in a home of its own, over written replies."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from server.cache.prefix import common_prefix
from server.engine.events import Started
from server.engine.request import GenerationRequest
from server.text.template import ChatTemplate
from tests.clients.written import VOCABULARY, Written, events_of, live
from tests.server.api.scripted import Script, services

LISTED = Path(__file__).parent / "agents"
"""The packages, with their versions."""
N_CTX = 1 << 20
SECONDS = 100  # of an agent that hangs; on a busy machine one takes 20
TEMPLATE = r"""
{%- if tools -%}
    {{- '<|im_start|>system\n<tools>\n' -}}
    {%- for tool in tools -%}{{- tool | tojson + '\n' -}}{%- endfor -%}
    {{- '</tools><|im_end|>\n' -}}
{%- endif -%}
{%- set ns = namespace(asked=-1) -%}
{%- for m in messages -%}
    {%- if m.role == 'user' -%}{%- set ns.asked = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for m in messages -%}
    {%- set text = m.content or '' -%}
    {%- if m.role == 'tool' -%}
        {{- '<|im_start|>user\n<tool_response>\n' + text + '\n</tool_response><|im_end|>\n' -}}
    {%- elif m.role == 'assistant' -%}
        {{- '<|im_start|>assistant\n' -}}
        {%- if m.reasoning_content and loop.index0 > ns.asked -%}
            {{- '<think>\n' + m.reasoning_content.strip('\n') + '\n</think>\n\n' -}}
        {%- endif -%}
        {{- text -}}
        {%- for call in m.tool_calls or [] -%}
            {{- '\n' if text else '' -}}
            {%- set f = call.function -%}
            {{- '<tool_call>\n' + {'name': f.name, 'arguments': f.arguments} | tojson + '\n</tool_call>' -}}
        {%- endfor -%}
        {{- '<|im_end|>\n' -}}
    {%- else -%}
        {{- '<|im_start|>' + m.role + '\n' + text + '<|im_end|>\n' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
"""
"""As Qwen 3: shows tools, and thoughts behind the last question."""
TITLE = "A short title"
"""The reply to what an agent asks beside the conversation, where it offers no tools."""


@dataclass(slots=True)
class Conversing(Written):
    """Generator of scripted replies to requests that offer tools, and of a title for others."""

    said: list[list[int]] = field(default_factory=list[list[int]])
    """The tokens of each reply, without the one that ends it."""
    n_asides: int = 0

    def submit(self, request: GenerationRequest) -> Script:
        text = b"".join(VOCABULARY.piece(token, special=True) for token in request.prompt).decode()
        if request.precompute or "<tools>" in text:
            n_before = len(self.requests)
            script = Written.submit(self, request)
            if len(self.requests) > n_before:
                self.said.append(list(VOCABULARY.tokenize(str(self.replies[n_before]), special=True)))
            return script
        self.n_asides += 1
        return Script(Started(len(request.prompt), 0), *events_of(TITLE)).submit(request)

    def n_new(self, turn: int) -> int:
        """Return how many tokens of a turn's prompt the turn before it, prompt and reply, lacks."""
        before = [*self.requests[turn - 1].prompt, *self.said[turn - 1]]
        return len(before) - common_prefix(before, list(self.requests[turn].prompt))


@contextmanager
def conversing(*replies: str, n_ctx: int = N_CTX) -> Generator[Conversing]:
    """Serve these replies on a free port, with a template that knows thoughts and tools."""
    written = Conversing(replies)
    state = services(written)
    state = replace(state, template=ChatTemplate(TEMPLATE), model=replace(state.model, n_ctx=n_ctx))
    with live(state) as written.url:
        yield written


def call(name: str, **arguments: Any) -> str:
    """Return a reply that thinks and then calls a tool."""
    written = json.dumps({"name": name, "arguments": arguments})
    return f"<think>\nI look.\n</think>\n\n<tool_call>\n{written}\n</tool_call>"


def installed() -> Path:
    """Return where the agents are installed, in a directory of the user's cache; skip the test without them.

    They are fetched where the environment says DUO_AGENTS=fetch, as continuous integration does.
    """
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("needs Node and npm")
    lock = (LISTED / "package-lock.json").read_bytes()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = cache / "duo" / f"agents-{hashlib.sha256(lock).hexdigest()[:12]}"
    if (place / "complete").exists():
        return place
    if os.environ.get("DUO_AGENTS") != "fetch":
        pytest.skip("the agents are not installed: DUO_AGENTS=fetch fetches them, 1.3 GB")
    place.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(LISTED / name, place)
    fetched = subprocess.run(
        ["npm", "install", "--no-audit", "--no-fund"],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    if fetched.returncode:
        pytest.skip(f"the agents cannot be fetched: {fetched.stderr.strip()[-300:]}")
    (place / "complete").touch()
    return place


@dataclass(frozen=True, slots=True)
class Home:
    """A home directory without anything of the user's, and a project in it."""

    path: Path
    agents: Path

    @property
    def project(self) -> Path:
        return self.path / "project"

    def write(self, name: str, content: str | bytes) -> Path:
        """Write a file below the home directory."""
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return file

    def run(self, program: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the packages, or node, in the project; kill it if it hangs."""
        self.project.mkdir(exist_ok=True)
        found = self.agents / "node_modules" / ".bin" / program
        command: Sequence[str] = [str(found) if found.exists() else program, *arguments]
        own: Mapping[str, str] = {
            "HOME": str(self.path),
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "NO_COLOR": "1",
            **env,
        }
        return subprocess.run(
            command,
            cwd=self.project,
            env=own,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
