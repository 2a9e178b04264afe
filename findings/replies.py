"""Serve chat completions that a file spells out, as an OpenAI-compatible server sends them.

The file has for each name of a model the pieces of its streamed reply: [delta, finish_reason] is a chunk
with one choice, an object is sent as it is. A conversation that ends with a tool's result gets "done".
"""

import http.server
import json
import sys
from pathlib import Path
from typing import Any, cast

HEAD: dict[str, Any] = {"id": "c", "object": "chat.completion.chunk", "created": 0}
DONE: list[Any] = [[{"role": "assistant", "content": "done"}, None], [{}, "stop"]]
REPLIES: dict[str, list[Any]] = json.loads(Path(sys.argv[1]).read_text())


class Server(http.server.BaseHTTPRequestHandler):
    """Answers each POST with the stream of the model that it names."""

    def do_POST(self) -> None:
        """Send the whole stream at once; its events are what counts here."""
        asked: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["content-length"])))
        pieces = DONE if asked["messages"][-1]["role"] == "tool" else REPLIES[asked["model"]]
        events = [json.dumps(self.chunk(asked["model"], piece)) for piece in pieces]
        if all(isinstance(piece, list) for piece in pieces):
            events.append("[DONE]")
        body = "".join(f"data: {event}\n\n" for event in events).encode()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    @staticmethod
    def chunk(model: str, piece: Any) -> dict[str, Any]:
        """Return the chunk of a piece."""
        if not isinstance(piece, list):
            return piece
        delta, reason = cast("list[Any]", piece)
        return {**HEAD, "model": model, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing, since the caller reads the URL from stdout."""


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
print(f"http://127.0.0.1:{server.server_port}/v1", flush=True)
server.serve_forever()
