"""duo chat: a multi-turn conversation in the terminal, streamed from any lead."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import httpx
from pydantic import Field
from pydantic_settings import SettingsConfigDict
from rich.console import Console
from rich.text import Text

from server.errors import DuoError, StartupError
from server.settings import ClientSettings, answer_of

HELP = "Type a message. :new begins a new conversation, :quit leaves, Ctrl-C stops a reply."


class ChatSettings(ClientSettings):
    """Chat in the terminal with a running lead. :new begins a new conversation, :quit leaves."""

    model_config = SettingsConfigDict(
        env_prefix="DUO_CHAT_", cli_prog_name="duo chat", cli_shortcuts={"system": "s"}
    )

    system: str | None = Field(None, description="a system message")
    temp: float | None = Field(None, ge=0, description="temperature (default: the server's)")
    max_tokens: int | None = Field(None, ge=1, description="longest reply in tokens")


class Conversation:
    def __init__(self, client: httpx.Client, settings: ChatSettings) -> None:
        self._client = client
        self._settings = settings
        self.reset()

    def reset(self) -> None:
        """Forget everything but the system message."""
        system = self._settings.system
        self._messages: list[dict[str, str]] = [{"role": "system", "content": system}] if system else []

    def ask(self, text: str) -> Iterator[dict[str, Any]]:
        """Send a message and yield the reply's chunks; as much of the reply as was read joins the messages.
        Raises DuoError when the server refuses or fails."""
        self._messages.append({"role": "user", "content": text})
        reply: list[str] = []
        body: dict[str, Any] = {
            "messages": self._messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": self._settings.temp,
            "max_tokens": self._settings.max_tokens,
        }
        try:
            with self._client.stream("POST", "/v1/chat/completions", json=body) as response:
                for chunk in _chunks(response):
                    reply += [choice["delta"].get("content") or "" for choice in chunk["choices"]]
                    yield chunk
        except httpx.HTTPError as error:
            raise DuoError(f"the connection was lost ({error})") from error
        finally:
            if reply:
                self._messages.append({"role": "assistant", "content": "".join(reply)})
            else:
                self._messages.pop()


def _chunks(response: httpx.Response) -> Iterator[dict[str, Any]]:
    if response.status_code != 200:
        response.read()
        raise DuoError(_message(response))
    for line in response.iter_lines():
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        chunk = json.loads(line.removeprefix("data: "))
        if "error" in chunk:
            raise DuoError(str(chunk["error"]["message"]))
        yield chunk


def _message(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered {response.status_code}"


def chat(settings: ChatSettings) -> int:
    """Run until :quit or the end of input. Raises StartupError when no lead answers."""
    console = Console(highlight=False)
    with settings.client(httpx.Timeout(10, read=None)) as client:  # a reply may take any time to begin
        console.print(Text(f"{_model(client, settings)} at {settings.url}", "bold"))
        console.print(Text(HELP, "dim"))
        conversation = Conversation(client, settings)
        while True:
            try:
                text = console.input(Text("\n> ", "bold cyan")).strip()
            except (EOFError, KeyboardInterrupt):
                console.print()
                return 0
            if text == ":quit":
                return 0
            if text == ":new":
                conversation.reset()
                console.print(Text("a new conversation", "dim"))
            elif text:
                _reply(console, conversation, text)


def _reply(console: Console, conversation: Conversation, text: str) -> None:
    timings: dict[str, Any] | None = None
    with contextlib.suppress(KeyboardInterrupt):
        try:
            for chunk in conversation.ask(text):
                timings = chunk.get("timings") or timings
                for choice in chunk["choices"]:
                    piece = choice["delta"].get("content") or ""
                    console.print(Text(piece), end="", soft_wrap=True)
        except DuoError as error:
            console.print(Text(error.message, "red"))
    console.print()
    if timings:
        console.print(Text(_summary(timings), "dim"))


def _summary(timings: dict[str, Any]) -> str:
    line = f"{timings['predicted_n']} tokens at {timings['predicted_per_second']:.0f} tokens/s"
    line += f" · {timings['cache_n']} of {timings['cache_n'] + timings['prompt_n']} prompt tokens reused"
    if timings.get("draft_n"):
        line += f" · {timings['draft_n_accepted']} of {timings['draft_n']} drafts accepted"
    return line


def _model(client: httpx.Client, settings: ChatSettings) -> str:
    response = answer_of(client, "/v1/models")
    if response.status_code != 200:
        raise StartupError(f"{settings.url}: {_message(response)}")
    return str(response.json()["data"][0]["id"])
