"""Hold a conversation with a lead over HTTP, for duo chat."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from server.client_settings import answer_of
from server.errors import DuoError, StartupError

NEEDS_KEY = "this lead wants an API key: give it with --api-key KEY, or set DUO_API_KEY"


class Dialogue:
    """A conversation with a lead: its messages, and the `fields` that every request sends."""

    def __init__(self, client: httpx.Client, system: str | None, fields: dict[str, Any]) -> None:
        self.fields = fields
        self.messages = [{"role": "system", "content": system}] if system else []
        self._client = client

    def set_system(self, text: str | None) -> None:
        """Replace the system message; None or "": remove it."""
        rest = [message for message in self.messages if message["role"] != "system"]
        self.messages = ([{"role": "system", "content": text}] if text else []) + rest

    def clear(self) -> None:
        """Forget everything but the system message."""
        self.messages = [message for message in self.messages if message["role"] == "system"]

    def take_back(self) -> str | None:
        """Remove the last question and its answer, and return the question; None if there is none."""
        asked = [i for i, message in enumerate(self.messages) if message["role"] == "user"]
        if not asked:
            return None
        question = self.messages[asked[-1]]["content"]
        del self.messages[asked[-1] :]
        return question

    def save(self, path: Path) -> None:
        """Write the messages to a file. Raises DuoError."""
        try:
            path.write_text(json.dumps({"messages": self.messages}, ensure_ascii=False, indent=1) + "\n")
        except OSError as error:
            raise DuoError(f"{path} cannot be written ({error.strerror})") from error

    def load(self, path: Path) -> None:
        """Continue a saved conversation. Raises DuoError."""
        try:
            found: Any = json.loads(path.read_text())["messages"]
            messages = [{"role": str(one["role"]), "content": str(one["content"])} for one in found]
        except OSError as error:
            raise DuoError(f"{path} cannot be read ({error.strerror})") from error
        except (ValueError, KeyError, TypeError) as error:
            raise DuoError(f"{path} holds no conversation of duo chat") from error
        self.messages = messages

    def ask(self, text: str) -> Iterator[dict[str, Any]]:
        """Send a message and yield the reply's chunks. The conversation keeps the chunks that are consumed.

        Raises:
            DuoError: The server refuses or fails; the message is then dropped from the conversation.
        """
        self.messages.append({"role": "user", "content": text})
        reply: list[str] = []
        body = {"messages": self.messages, "stream": True, "return_sources": True, **self.fields}
        body["stream_options"] = {"include_usage": True}
        try:
            with self._client.stream("POST", "/v1/chat/completions", json=body) as response:
                for chunk in chunks(response):
                    reply += [choice["delta"].get("content") or "" for choice in chunk["choices"]]
                    yield chunk
        except httpx.HTTPError as error:
            raise DuoError(f"the connection was lost ({error})") from error
        finally:
            if any(reply):
                self.messages.append({"role": "assistant", "content": "".join(reply)})
            else:
                self.messages.pop()

    def drafters(self) -> dict[str, str]:
        """Return the drafters' names by id; empty if the lead does not answer."""
        try:
            return {one["id"]: one["name"] for one in self._client.get("/health").json()["drafters"]}
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return {}


def model_of(client: httpx.Client) -> str:
    """Return the name of the lead's model.

    Raises:
        StartupError: No lead answers, or one answers with an error.
    """
    response = answer_of(client, "/v1/models")
    if response.status_code != 200:
        raise StartupError(f"{client.base_url}: {_error_message(response)}")
    try:
        return str(response.json()["data"][0]["id"])
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise StartupError(f"{client.base_url} is not a lead") from error


def chunks(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """Yield a reply's chunks, each with a list of choices. Raises DuoError if the server fails."""
    if response.status_code != 200:
        response.read()
        raise DuoError(_error_message(response))
    try:
        for line in response.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            chunk = json.loads(line.removeprefix("data: "))
            if "error" in chunk:
                raise DuoError(str(chunk["error"]["message"]))
            yield {**chunk, "choices": [{**one, "delta": dict(one["delta"])} for one in chunk["choices"]]}
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise DuoError("the server's reply cannot be read: it is not in OpenAI's form") from error


def _error_message(response: httpx.Response) -> str:
    if response.status_code == 401:
        return NEEDS_KEY
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered {response.status_code}"
