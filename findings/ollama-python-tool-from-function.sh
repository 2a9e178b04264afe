#!/usr/bin/env bash
# ollama 0.6.3, Ollama's client for Python, which makes a tool of a Python function that is passed in `tools`.
# Expected: the parameters' types and choices reach the model, and those with a default value are optional.
# Seen:     the choices of a Literal are gone, so is what a list holds; `int | str` becomes `"type": "integer, string"` (in an
#           order that changes between runs), which is no type of JSON Schema; a parameter with a default is required unless it
#           may be None. Pydantic, from which the client takes the schema, has all of it right.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" --quiet --disable-pip-version-check install ollama==0.6.3 pydantic==2.14.4
"$dir/venv/bin/python" - <<'PY'
import http.server
import json
import threading
from importlib.metadata import version
from typing import Literal

import ollama
import pydantic


def search(unit: Literal["C", "F"], tags: list[str], key: int | str, limit: int = 10, near: str | None = None):
    """Search.

    Args:
        unit: of the temperatures
        tags: that it has
        key: of the place
        limit: how many
        near: a place
    """


asked = []


class Server(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        body = json.dumps({"model": "m", "message": {"role": "assistant", "content": "hi"}, "done": True}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_): ...


server = http.server.HTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
client = ollama.Client(f"http://127.0.0.1:{server.server_port}")
client.chat("m", messages=[{"role": "user", "content": "hi"}], tools=[search])
server.shutdown()
sent = asked[0]["tools"][0]["function"]["parameters"]
right = pydantic.TypeAdapter(search).json_schema()
for name in right["properties"]:
    print(f"{name}: Pydantic {right['properties'][name]}, ollama {version('ollama')} {sent['properties'][name]}")
print(f"required: Pydantic {right['required']}, ollama {sent['required']}")
types = {name: each["type"] for name, each in sent["properties"].items()}
key = ", ".join(sorted(types.pop("key").split(", ")))
assert right["properties"]["unit"]["enum"] == ["C", "F"] and right["required"] == ["unit", "tags", "key"], right
assert types == {"unit": "string", "tags": "array", "limit": "integer", "near": "string"}, "changed"
assert key == "integer, string", "changed"
assert not any(each.get("enum") or each.get("items") for each in sent["properties"].values()), "changed"
assert sent["required"] == ["unit", "tags", "key", "limit"], "changed"
PY
