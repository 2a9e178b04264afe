"""What a streamed token costs between the engine and the socket: many streams at once, over a toy model.

A lead in a process of its own generates for all streams; this process stamps what arrives and parses it
afterwards. Measured is the CPU time of the thread of the lead's event loop while all streams run, without the
engine and other processes; the kernel's part, mostly sending, has a column of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import orjson
import uvloop

from benchmarks import program, report
from benchmarks.client import ReplyError, Stamped
from benchmarks.http_lead import Lead, Told, lead

END = b"0\r\n\r\n"  # of a body in chunks
MOST_READ = 1 << 16  # bytes at once
ROUND_S = 120.0
BOUND_US = 60.0  # of Python for a token: 64 streams at 50 tokens/s take a fifth of a core then
MESSAGES = [{"role": "user", "content": "Say something."}]
SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "say", "parameters": SCHEMA}}


CHAT = "/v1/chat/completions"
MODES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {"messages": MESSAGES}),
    "logprobs": (CHAT, {"messages": MESSAGES, "logprobs": True, "top_logprobs": 5}),
    "tools": (CHAT, {"messages": MESSAGES, "tools": [TOOL], "tool_choice": "required"}),
    "auto": (CHAT, {"messages": MESSAGES, "tools": [TOOL]}),
    "responses": ("/v1/responses", {"input": "Say something.", "store": False}),
    "completions": ("/v1/completions", {"prompt": "Say something."}),
}


def text_of(event: dict[str, Any]) -> str:
    """The reply's text in one event of any mode; the toy's tokens are characters."""
    if event.get("type") == "response.output_text.delta":
        return event["delta"]
    text = ""
    for choice in event.get("choices", ()):
        delta = choice.get("delta", {})
        text += choice.get("text") or delta.get("content") or ""
        text += "".join(call["function"]["arguments"] for call in delta.get("tool_calls", ()))
    return text


@dataclass(frozen=True, slots=True)
class Round:
    """One round of streams. rate: tokens/s; cost_us, kernel_us: CPU time of the event loop's thread for a
    token outside and inside the kernel; per_chunk: tokens in a chunk with text; latencies: seconds from the
    engine to the client, of each token."""

    rate: float
    cost_us: float
    kernel_us: float
    per_chunk: float
    latencies: Sequence[float]


# -- one round ----------------------------------------


async def streams(mode: str, port: int, n: int, n_tokens: int) -> dict[str, Stamped]:
    """What n clients of this mode received, by the id of their request."""
    path, fields = MODES[mode]
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    body = json.dumps({"model": "toy", "stream": True, **fields, limit: n_tokens}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\nx-request-id: "
    ids = [f"stream-{i}" for i in range(n)]
    async with asyncio.timeout(ROUND_S):
        requests = [f"{head}{id}\r\n\r\n".encode() + body for id in ids]
        return dict(zip(ids, await asyncio.gather(*(_stream(port, one) for one in requests)), strict=True))


async def _stream(port: int, request: bytes) -> Stamped:
    """The bytes of a reply with the times at which they arrived, up to its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    received: list[tuple[float, bytes]] = []
    while data := await reader.read(MOST_READ):
        received.append((time.monotonic(), data))
        if data.endswith(END):
            break
    writer.close()
    return received


def events(received: Stamped) -> list[tuple[float, dict[str, Any]]]:
    """The server-sent events of a reply, each with when all of it was here. Raises ReplyError."""
    whole = b"".join(data for _, data in received)
    head, _, _ = whole.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise ReplyError(f"the lead refused: {whole[:500].decode(errors='replace')}")
    if not whole.endswith(END):
        raise ReplyError("a reply was cut short")
    arrivals, n_received = list[tuple[int, float]](), 0
    for at, data in received:
        n_received += len(data)
        arrivals.append((n_received, at))
    told: list[tuple[float, dict[str, Any]]] = []
    at, arrival, text = len(head) + 4, 0, b""
    while (size := int(whole[at : (end := whole.index(b"\r\n", at))], 16)) > 0:
        text += whole[end + 2 : end + 2 + size]
        at = end + 2 + size + 2
        while arrivals[arrival][0] < at:
            arrival += 1
        *complete, text = text.split(b"\n\n")
        told += [(arrivals[arrival][1], parsed) for one in complete if (parsed := _parsed(one))]
    return told


def _parsed(event: bytes) -> dict[str, Any] | None:
    data = next((line[6:] for line in event.splitlines() if line.startswith(b"data: ")), b"[DONE]")
    return None if data == b"[DONE]" else orjson.loads(data)


def result(told: Told, replies: dict[str, Stamped]) -> Round:
    """Raises ReplyError unless there was a time when all streams ran."""
    if len(told.marks) < 2:
        raise ReplyError("the streams did not all run at once: ask for more tokens")
    (began, *before), (ended, *after) = told.marks
    n_new, cpu_s, kernel_s = (new - old for new, old in zip(after, before, strict=True))
    latencies: list[float] = []
    n_chunks = 0
    for id, received in replies.items():
        emitted = told.emitted[id]
        texts = [(at, text) for at, event in events(received) if (text := text_of(event))]
        token = len(emitted) - sum(len(text) for _, text in texts)  # others come before all text
        for at, text in texts:
            times = [t for t in emitted[token : token + len(text)] if began < t <= ended]
            token += len(text)
            latencies += [at - t for t in times]
            n_chunks += bool(times)
    return Round(
        rate=n_new / (ended - began),
        cost_us=1e6 * (cpu_s - kernel_s) / n_new,
        kernel_us=1e6 * kernel_s / n_new,
        per_chunk=len(latencies) / max(1, n_chunks),
        latencies=latencies,
    )


def measure_round(mode: str, lead: Lead, n_streams: int, n_tokens: int) -> Round:
    """Raises ReplyError."""
    replies = uvloop.run(streams(mode, lead.port, n_streams, n_tokens))
    return result(lead.told(), replies)


# -- the program ----------------------------------------


def table(rounds: Mapping[str, Sequence[Round]]) -> str:
    """Markdown: medians over the rounds; latencies are of all rounds together."""
    heads = "stream | Python, µs a token | kernel, µs | tokens/s | tokens in a chunk | p50, ms | p99, ms"
    rows: list[list[str]] = []
    for name, some in rounds.items():
        latencies = sorted(1e3 * latency for one in some for latency in one.latencies)
        cost = median(one.cost_us for one in some)
        rows.append(
            [
                name,
                f"**{cost:.1f}**" if cost > BOUND_US else f"{cost:.1f}",
                f"{median(one.kernel_us for one in some):.1f}",
                f"{median(one.rate for one in some):,.0f}",
                f"{median(one.per_chunk for one in some):.2f}",
                *(f"{latencies[int(share * (len(latencies) - 1))]:.1f}" for share in (0.5, 0.99)),
            ]
        )
    return report.table(heads, rows)


def measure(args: argparse.Namespace) -> program.Result:
    """Raises DuoError."""
    what = (
        f"{args.streams} streams of {args.max_tokens} tokens at once, {args.rounds} rounds of each kind in "
        f"turn, {args.step_ms:g} ms and more for a decode. CPU time of the event loop's thread while all "
        "streams run; *kernel* is mostly sending. Latency from the engine's event to the client. Medians "
        f"over rounds; bold: more than {BOUND_US:.0f} µs of Python."
    )
    return "what a streamed token costs over HTTP", [what, table(compared(args))]


def compared(args: argparse.Namespace) -> dict[str, list[Round]]:
    """Rounds by the names of their rows. Raises DuoError."""
    checkouts: dict[str, Path | None] = {", beside": args.beside} if args.beside else {}
    checkouts[""] = None
    rounds: dict[str, list[Round]] = {mode + suffix: [] for mode in args.modes for suffix in checkouts}
    with ExitStack() as stack:
        leads = {
            suffix: stack.enter_context(lead(args.streams, args.step_ms / 1e3, checkout, gpu=args.gpu))
            for suffix, checkout in checkouts.items()
        }
        for number in range(args.rounds):
            for mode in args.modes:
                for suffix, one in leads.items():
                    measured = measure_round(mode, one, args.streams, args.max_tokens)
                    rounds[mode + suffix].append(measured)
                    cost = f"{measured.cost_us:.1f} + {measured.kernel_us:.1f} µs"
                    print(f"{number + 1}: {mode}{suffix}: {cost}", flush=True)
    return rounds


def _parser() -> argparse.ArgumentParser:
    what = "What a streamed token costs the event loop."
    parser = program.make_parser("http", what, "rounds", "max-tokens", rounds=5, max_tokens=200)
    add = parser.add_argument
    add("--streams", type=int, default=64, help="at once")
    add("--step-ms", type=float, default=15.0, help="added to each decode; 0: waiting tokens go out together")
    add("--modes", nargs="+", choices=MODES, default=list(MODES), help="default: all")
    add("--gpu", action="store_true", help="decodes are under way only when they are nearly over")
    add("--beside", type=Path, help="another checkout of duo, whose rounds are in turn with ours")
    return parser


main = program.main(_parser, measure)

if __name__ == "__main__":
    sys.exit(main())
