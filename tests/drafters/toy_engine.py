"""An inference engine over HTTP that says what a test tells it to, in the dialect of a real one."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.fake_backend import FakeVocabulary

Answer = Callable[[dict[str, Any]], Iterable[bytes] | None]
"""Lines of the streamed answer to a request; None: the connection breaks."""


class ToyEngine:
    """A server on its own port.

    answers: by path.
    """

    def __init__(self, **answers: Answer) -> None:
        self.answers = {f"/{name.replace('__', '/')}": answer for name, answer in answers.items()}
        self.requests: list[dict[str, Any]] = []
        self.lines_sent = threading.Semaphore(0)
        handler = type("Handler", (_Handler,), {"engine": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    engine: ToyEngine

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))

    def _answer(self, body: dict[str, Any]) -> None:
        answer = self.engine.answers.get(self.path)
        if answer is None:
            self.send_error(404)
            return
        if self.path != "/tokenize":
            self.engine.requests.append(body)
        lines = answer(body)
        if lines is None:
            self.close_connection = True
            return
        self.send_response(200)
        self.end_headers()
        for line in lines:
            self.wfile.write(line)

    def log_message(self, format: str, *args: object) -> None:
        pass


def tokenize(body: dict[str, Any]) -> list[bytes]:
    """Return llama-server's /tokenize of the toy vocabulary."""
    tokens = FakeVocabulary().tokenize(body["content"], special=True)
    return [json.dumps({"tokens": list(tokens)}).encode()]


def always(*lines: bytes) -> Answer:
    """Return an answer that is the same for every request."""
    return lambda body: list(lines)


def completion(text: bytes, stop_type: str = "limit", seconds: bytes = b"") -> list[bytes]:
    """Return llama-server's /completion, one token a byte; seconds: the likeliest other ones."""
    events: list[dict[str, Any]] = [
        {
            "content": chr(token),
            "tokens": [token],
            "stop": False,
            "completion_probabilities": [
                {
                    "id": token,
                    "logprob": -0.1,
                    "top_logprobs": [{"id": one, "logprob": -0.5} for one in (token, *second)],
                }
            ],
        }
        for token, second in ((token, seconds[i : i + 1]) for i, token in enumerate(text))
    ]
    last: dict[str, Any] = {"content": "", "tokens": [], "stop": True, "stop_type": stop_type}
    return [b"data: %s\n\n" % json.dumps(event).encode() for event in [*events, last]]
