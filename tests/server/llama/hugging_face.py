"""A server that answers as Hugging Face does to downloads."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import huggingface_hub
import orjson

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass(slots=True)
class FakeHub:
    """A Hugging Face that has the repository `somebody/model`.

    files: contents by name. token: without it a request gets a 401. downloads: names of the files sent.
    """

    url: str
    files: Mapping[str, bytes]
    token: str | None = None
    downloads: list[str] = field(default_factory=list[str])


@contextmanager
def hugging_face(files: Mapping[str, bytes], token: str | None = None) -> Generator[FakeHub]:
    """Serve it on a free port until the end of the block."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        hub = FakeHub(f"http://127.0.0.1:{server.server_port}", files, token)
        server.hub = hub  # pyright: ignore[reportAttributeAccessIssue] - for the handler
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield hub
        finally:
            huggingface_hub.close_session()  # else its open connections keep their handlers waiting
            server.shutdown()
            thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # its end waits for them


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""

    def _answer(self, *, with_body: bool) -> None:
        hub: FakeHub = self.server.hub
        path = unquote(urlsplit(self.path).path)
        if hub.token is not None and self.headers.get("authorization") != f"Bearer {hub.token}":
            return self._send(401, b"", {"x-error-code": "RepoNotFound"}, with_body=with_body)
        if path.startswith("/api/models/somebody/model"):
            return self._send(200, self._listing(hub, path), {}, with_body=with_body)
        name = path.removeprefix("/somebody/model/resolve/main/").removeprefix(
            f"/somebody/model/resolve/{COMMIT}/"
        )
        data = hub.files.get(name)
        if data is None:
            code = "EntryNotFound" if path.startswith("/somebody/model/") else "RepoNotFound"
            return self._send(404, b"", {"x-error-code": code}, with_body=with_body)
        if with_body:
            hub.downloads.append(name)
        etag = hashlib.sha256(data).hexdigest()
        return self._send(200, data, {"etag": f'"{etag}"', "x-repo-commit": COMMIT}, with_body=with_body)

    def _listing(self, hub: FakeHub, path: str) -> bytes:
        if "/tree/" in path:
            tree = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in hub.files.items()
            ]
            return orjson.dumps(tree)
        siblings = [{"rfilename": name} for name in hub.files]
        return orjson.dumps({"id": "somebody/model", "sha": COMMIT, "siblings": siblings})

    def _send(self, status: int, data: bytes, headers: Mapping[str, str], *, with_body: bool) -> None:
        self.send_response(status)
        for name, value in {"content-type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        if with_body:
            self.wfile.write(data)
