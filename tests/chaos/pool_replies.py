"""Replies of a pool as its clients read them: over any number of connections, which end at any moment."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from random import Random
from typing import Any, Literal, TypeAlias, cast

import httpx

WHOLE_S = 90.0  # maximum seconds of a reply, with all faults of a schedule

SCHEMA = {"type": "object", "properties": {"name": {"enum": ["duo", "solo"]}, "n": {"type": "integer"}}}
TOOL = {"type": "function", "name": "look", "parameters": {**SCHEMA, "required": ["name"]}}
LOGPROBS: dict[str, Any] = {"top_logprobs": 2, "include": ["message.output_text.logprobs"]}
FORMAT: dict[str, Any] = {"format": {"type": "json_schema", "name": "it", "schema": SCHEMA}}
LONG: dict[str, Any] = {"temperature": 1, "max_output_tokens": 400}
RESPONSES: list[dict[str, Any]] = [
    {"input": "Tell me about the sea.", "seed": 1, **LONG},
    {"input": "Explain what a list is.", "temperature": 0, "max_output_tokens": 400},
    {"input": "Name rivers.", "seed": 2, **LOGPROBS, **LONG},
    {"input": "Which?", "seed": 3, "text": FORMAT},
    {"input": "Look for it.", "seed": 4, "tools": [TOOL], "tool_choice": "required", **LONG},
    {"input": "A poem.", "seed": 5, "repeat_penalty": 1.2, "dry_multiplier": 0.8, **LONG},
    {"input": "And then?", "seed": 6, "mirostat": 2, "mirostat_tau": 3.0, **LONG},
]
CHATS: list[dict[str, Any]] = [
    {"seed": 7, "temperature": 1, "max_tokens": 300, "n": 2, "logprobs": True},
    {"seed": 8, "temperature": 1, "max_tokens": 300, "stop": ["e, ", "q"]},
]
MESSAGES = [{"role": "user", "content": "Once upon a time"}]
ENDS = ("response.completed", "response.incomplete", "response.failed")
DONE = b"data: [DONE]\n\n"
NUMBER = re.compile(rb'"sequence_number":(\d+)')
N_KINDS = len(RESPONSES) + len(CHATS)

Flaw: TypeAlias = Literal["incomplete", "gap", "repeat", "unequal"]


class FlawError(AssertionError):
    """What is wrong with a reply."""

    def __init__(self, flaw: Flaw, detail: str) -> None:
        super().__init__(f"{flaw}: {detail}")
        self.flaw: Flaw = flaw


class Reading:
    """One reply, read over any number of connections; the next one is at another lead or at the same.

    n_expected: events with a sequence number that a response should have.
    """

    def __init__(self, ports: Sequence[int], chance: Random, n_expected: int = 0) -> None:
        self._ports, self._chance, self._n_expected = ports, chance, n_expected
        self._until = time.monotonic() + WHOLE_S
        self._got = b""
        self.id = ""  # of a response
        self.asked_of = 0  # port of the lead that began it
        self.arrivals: dict[int, float] = {}  # monotonic seconds, by the last event number of what came then
        self.n_events = 0  # events with a sequence number, so far

    def is_at(self, port: int) -> bool:
        """Return True while the first half of a response is read that the lead at `port` began."""
        return self.asked_of == port and 0 < self.n_events <= self._n_expected / 2

    def reply(self, what: int) -> str:
        """Ask for a reply, read it to its end, and return what it says. Raises FlawError."""
        if what < len(RESPONSES):
            return self._response({**RESPONSES[what], "background": True, "stream": True})
        return self._chat({**CHATS[what - len(RESPONSES)], "messages": MESSAGES, "stream": True})

    def _response(self, body: dict[str, Any]) -> str:
        while not self._got:
            self._read("POST", "/v1/responses", json=body)
        events = _events(self._got)
        self.id = events[0]["response"]["id"]
        while events[-1]["type"] not in ENDS:
            query = {"stream": "true", "starting_after": str(events[-1]["sequence_number"])}
            self._read("GET", f"/v1/responses/{self.id}", params=query)
            events = _events(self._got)
        return seen_of_response(events)

    def _chat(self, body: dict[str, Any]) -> str:
        name = {"conv_id": f"{self._chance.getrandbits(64):x}"}
        while not self._got:
            headers = {"X-Conversation-Id": name["conv_id"]}
            self._read("POST", "/v1/chat/completions", json=body, headers=headers)
        while not self._got.endswith(DONE):
            self._read("GET", "/v1/stream", params={**name, "from": str(len(self._got))})
        parts, self._got = self._got, b""
        while not self._got.endswith(DONE):  # once more, as its log has it
            self._read("GET", "/v1/stream", params={**name, "from": str(len(self._got))})
        if parts != self._got:
            flaw = "gap" if len(parts) < len(self._got) else "repeat"
            raise FlawError(flaw, f"{parts!r} was read, {self._got!r} is stored")
        return seen_of_chat(_events(parts))

    def _read(self, method: str, path: str, **more: Any) -> None:
        """Read what one connection to some lead gives until it ends; of an event that is cut, nothing."""
        if time.monotonic() > self._until:
            raise FlawError("incomplete", f"it never ended: {self._got[-500:]!r}")
        port = self._chance.choice(self._ports)
        self.asked_of = port if method == "POST" else self.asked_of
        try:
            with httpx.stream(method, f"http://127.0.0.1:{port}{path}", timeout=WHOLE_S, **more) as stream:
                if stream.status_code != 200:
                    _check_refusal(stream)
                    time.sleep(0.05)
                    return
                for chunk in stream.iter_raw():
                    self._got += chunk
                    if numbers := NUMBER.findall(chunk):
                        self.arrivals.setdefault(int(numbers[-1]), time.monotonic())
                        self.n_events = max(self.n_events, int(numbers[-1]) + 1)
        except httpx.TransportError:
            time.sleep(0.02)
        finally:
            self._got = self._got[: self._got.rfind(b"\n\n") + 2] if b"\n\n" in self._got else b""


def _check_refusal(stream: httpx.Response) -> None:
    """Check that a lead refused for now only, or because it does not know the conversation yet."""
    stream.read()
    if stream.status_code not in (429, 503) and not (stream.status_code == 404 and "conv_id" in stream.text):
        raise FlawError("incomplete", f"{stream.status_code}: {stream.text}")


def _events(stream: bytes) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in stream.splitlines() if line.startswith(b"data: {")]


def seen_of_response(events: Sequence[dict[str, Any]]) -> str:
    """Return what a response says. Raises FlawError for a gap, a repeat, or deltas unlike the whole."""
    numbers = [one["sequence_number"] for one in events]
    if len(set(numbers)) < len(numbers):
        raise FlawError("repeat", str(numbers))
    if numbers != list(range(len(numbers))):
        raise FlawError("gap", str(numbers))
    response = events[-1]["response"]
    if response["status"] not in ("completed", "incomplete"):
        raise FlawError("incomplete", str(response))
    deltas = "".join(one["delta"] for one in events if one["type"].endswith(".delta"))
    said = [item.get("arguments") or item["content"][0]["text"] for item in response["output"]]
    done = [one["item"] for one in events if one["type"] == "response.output_item.done"]
    if deltas != "".join(said) or done != response["output"]:
        raise FlawError("unequal", f"deltas {deltas!r} and items {done} in {response}")
    plain = [{name: value for name, value in item.items() if "id" not in name} for item in done]
    return json.dumps([plain, response["status"], response["usage"]["output_tokens"]], sort_keys=True)


def seen_of_chat(events: Sequence[dict[str, Any]]) -> str:
    """Return what the choices of a chat completion say."""
    said, logprobs, ends = dict[int, str](), dict[int, str](), dict[int, Any]()
    for part in events:
        if "error" in part:
            raise FlawError("incomplete", str(part))
        for choice in part["choices"]:
            at = choice["index"]
            said[at] = said.get(at, "") + (choice["delta"].get("content") or "")
            for one in cast("list[dict[str, Any]]", (choice["logprobs"] or {}).get("content") or []):
                logprobs[at] = logprobs.get(at, "") + f" {one['token']} {one['logprob']}"
            ends[at] = choice["finish_reason"] or ends.get(at)
    if len(ids := {part["id"] for part in events}) != 1:
        raise FlawError("unequal", f"ids {ids}")
    return json.dumps([said, logprobs, ends], sort_keys=True)
