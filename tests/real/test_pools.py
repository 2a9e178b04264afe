"""SmolLM2 in a pool: a reply whose leads are killed and drained is bit-equal to an undisturbed one."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.process.duo import READY_S, Duo, until
from tests.redis.members import Server

N_LEADS = 3
N_SEEN = 12  # deltas that a client has before each fault
FLAGS = (
    "--threads",
    "1",
    "--ctx-size",
    "1024",
    "--parallel",
    "2",
    "--draft-max",
    "0",
    "--no-embeddings",
    "--grace",
    "1",
)
ASKED: dict[str, Any] = {
    "input": "Write a long story about a lighthouse keeper and her dog.",
    "temperature": 1.0,
    "seed": 5,
    "repeat_penalty": 1.1,
    "max_output_tokens": 90,
    "top_logprobs": 2,
    "include": ["message.output_text.logprobs"],
    "speculative": {"exactness": "width-stable"},
}


@contextmanager
def pool_of(model: Path, folder: Path) -> Generator[list[Duo]]:
    """Yield leads of one pool, which know each other."""
    server = Server()
    server.start()
    with ExitStack() as stack:
        stack.callback(server.remove)
        leads = list[Duo]()
        for i in range(N_LEADS):
            place = folder / str(i)
            place.mkdir()
            flags = ("--model", str(model), "--redis", server.url, *FLAGS)
            leads.append(stack.enter_context(Duo(place, "serve", *flags)))
        for one in leads:
            one.wait_until_ready()
        until(lambda: all(len((one.health() or {})["pool"]) == N_LEADS for one in leads), READY_S, "no pool")
        yield leads


def events(method: str, url: str, n_deltas: int | None = None, **more: Any) -> list[dict[str, Any]]:
    """Return the events of a stream until its end, or until n_deltas of them are deltas."""
    seen = list[dict[str, Any]]()
    with suppress(httpx.TransportError), httpx.stream(method, url, timeout=120, **more) as stream:
        assert stream.status_code == 200, stream.read()
        for line in stream.iter_lines():
            if line.startswith("data: "):
                seen.append(json.loads(line[6:]))
                if sum(one["type"].endswith(".delta") for one in seen) == n_deltas:
                    return seen
    return seen


def rest(lead: Duo, seen: list[dict[str, Any]], n_deltas: int | None = None) -> list[dict[str, Any]]:
    """Return what a lead tells of a response after what a client has seen."""
    query = {"stream": "true", "starting_after": str(seen[-1]["sequence_number"])}
    return events("GET", f"{lead.url}/v1/responses/{seen[0]['response']['id']}", n_deltas, params=query)


def said(response: dict[str, Any]) -> tuple[Any, ...]:
    [item] = response["output"]
    [content] = item["content"]
    return content["text"], content["logprobs"], response["status"], response["usage"]["output_tokens"]


@pytest.mark.redis
def test_killed_and_drained_leads_change_no_bit(smollm2_file: Path, tmp_path: Path):
    with pool_of(smollm2_file, tmp_path) as leads:
        first, second, third = leads
        whole = httpx.post(f"{first.url}/v1/responses", json=ASKED, timeout=120).json()
        asked = {**ASKED, "background": True, "stream": True}
        seen = events("POST", f"{first.url}/v1/responses", N_SEEN, json=asked)
        first.process.kill()
        first.process.wait()
        seen += rest(second, seen, N_SEEN)
        until(lambda: _goes_on(second) or _goes_on(third), READY_S, "nobody took the reply up")
        drained, last = (second, third) if _goes_on(second) else (third, second)
        drained.stop()
        seen += rest(last, seen)
        assert _goes_on(drained)
        assert _goes_on(last)
    assert [one["sequence_number"] for one in seen] == list(range(len(seen)))
    told = seen[-1]["response"]
    assert said(told) == said(whole)
    deltas = [one for one in seen if one["type"].endswith(".delta")]
    text, logprobs, _, n_tokens = said(whole)
    assert n_tokens > 2 * N_SEEN
    assert "".join(one["delta"] for one in deltas) == text
    assert [p for one in deltas for p in one["logprobs"]] == logprobs


def _goes_on(lead: Duo) -> bool:
    return "goes on after event" in lead.log.read_text()
