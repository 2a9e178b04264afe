"""A server of chat completions that recites: for tests of the programs that measure servers.

`python -m tests.benchmarks.stub_server [flags of llama-server]`: only --port counts. STUB_DRAFTER says what
became of its drafter.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TEXT = "one two three four five six seven eight nine ten"
REPEATS = 2
DRAFTERS = [{"id": "d", "model": "m", "state": os.environ.get("STUB_DRAFTER", "accepted"), "reason": "why"}]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        health = {"status": "ok", "drafters": DRAFTERS, "engine": {"step_python_us": 42.0}}
        self._send("application/json", json.dumps(health).encode())

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        words = (TEXT.split(" ") * REPEATS)[: request["max_tokens"]]
        chunks: list[Any] = [{"choices": [{"delta": {"role": "assistant", "content": None}}]}]
        chunks += [{"choices": [{"delta": {"content": word + " "}}]} for word in words]
        chunks += [{"choices": [{"delta": {}, "finish_reason": "stop"}]}]
        timings = {"predicted_n": len(words), "predicted_ms": 10 * (len(words) - 1)}
        timings |= {"draft_n": 10, "draft_n_accepted": 7}
        usage = {"completion_tokens": len(words)}
        chunks += [{"choices": [], "usage": usage, "timings": timings}]
        events = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
        self._send("text/event-stream", "".join([*events, "data: [DONE]\n\n"]).encode())

    def _send(self, kind: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def leave(*_: object) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, leave)
    port = int(sys.argv[sys.argv.index("--port") + 1])
    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        server.serve_forever()
