"""A server of chat completions whose tokens are words and whose prompt cache forgets nothing but at its end.

`python -m tests.benchmarks.stub_cache [flags of duo or of llama-server]`. With --cache-dir it keeps all
conversations there when it is told to end; with --slot-save-path single ones, when asked. Of more slots than
one the latest request takes the next.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

N_SLOTS = 4

slots: list[list[str]] = [[] for _ in range(N_SLOTS)]
tasks = [-1] * N_SLOTS
seen: list[list[str]] = []


def flag(name: str) -> Path | None:
    return Path(sys.argv[sys.argv.index(name) + 1]) if name in sys.argv else None


def common(some: list[str], others: list[str]) -> int:
    pairs = zip(some, others, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(some), len(others)))


def answer(messages: list[dict[str, str]], max_tokens: int) -> list[Any]:
    """Return the chunks of a reply that says how many turns there were."""
    words = [word for m in messages for word in (f"<{m['role']}>", *m["content"].split())]
    cached = max((common(words[:-1], other) for other in seen), default=0)
    task = max(tasks) + 1
    slots[task % N_SLOTS], tasks[task % N_SLOTS] = words, task
    seen.append(words)
    reply = f"reply {len(messages)}".split()[:max_tokens]
    usage: dict[str, Any] = {"prompt_tokens": len(words), "completion_tokens": len(reply)}
    if flag("--cache-dir"):
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    return [
        *({"choices": [{"delta": {"content": word + " "}}]} for word in reply),
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": usage, "timings": {"cache_n": cached}},
    ]


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        listed = [{"id": i, "id_task": task} for i, task in enumerate(tasks)]
        self._send(200, json.dumps(listed if self.path == "/slots" else {"status": "ok"}))

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            pieces = re.findall(r"\s*\S+", request["content"])
            self._send(200, json.dumps({"tokens": [{"id": 0, "piece": piece} for piece in pieces]}))
        elif self.path == "/v1/chat/completions":
            chunks = answer(request["messages"], request["max_tokens"])
            events = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
            self._send(200, "".join([*events, "data: [DONE]\n\n"]))
        else:
            self._slot(request["filename"])

    def _slot(self, name: str) -> None:
        directory = flag("--slot-save-path")
        found = re.fullmatch(r"/slots/(\d)\?action=(save|restore)", self.path)
        if directory is None or found is None:
            self._send(501, "no such thing here")
        elif found[2] == "save":
            (directory / name).write_text(json.dumps(slots[int(found[1])]))
            self._send(200, "{}")
        else:
            seen.append(json.loads((directory / name).read_text()))
            self._send(200, "{}")

    def _send(self, status: int, body: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


def leave(*_: object) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, leave)
    port = int(sys.argv[sys.argv.index("--port") + 1])
    directory = flag("--cache-dir")
    kept = directory / "seen.json" if directory else None
    if kept and kept.exists():
        seen.extend(json.loads(kept.read_text()))
    try:
        with HTTPServer(("127.0.0.1", port), Handler) as server:
            server.serve_forever()
    finally:
        if kept:
            kept.write_text(json.dumps(seen))
