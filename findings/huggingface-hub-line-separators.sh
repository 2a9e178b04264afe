#!/usr/bin/env bash
# huggingface_hub 2.4.0, whose InferenceClient is a client for any OpenAI-compatible server, reading a streamed reply.
# Expected: lines of server-sent events end with a line feed or a carriage return, so a reply may hold any other character. JSON
#           need not escape U+2028 or U+0085, and servers written in C++, Rust and Python send them as they are.
# Seen:     lines are split at these characters as well, so a reply that quotes text with one ends with a JSONDecodeError in
#           its midst. OpenAI's SDK reads it. A server that writes them as \u2028 and \u0085 is read by both.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" --quiet --disable-pip-version-check install huggingface_hub==2.4.0 openai==3.3.0
"$dir/venv/bin/python" - <<'PY'
import http.server
import json
import threading
from importlib.metadata import version

import huggingface_hub
import openai

HEAD = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m"}


class Server(http.server.BaseHTTPRequestHandler):
    text, escaped = "", False

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        deltas = [({"role": "assistant", "content": self.text}, None), ({}, "stop")]
        chunks = [{**HEAD, "choices": [{"index": 0, "delta": delta, "finish_reason": end}]} for delta, end in deltas]
        events = [json.dumps(chunk, ensure_ascii=self.escaped) for chunk in chunks]
        body = "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]).encode()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_): ...


def read(chat):
    try:
        chunks = chat(model="m", messages=[{"role": "user", "content": "hi"}], stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    except Exception as error:
        return type(error).__name__


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}/v1"
clients = {
    "huggingface_hub": huggingface_hub.InferenceClient(base_url=url, api_key="none").chat.completions.create,
    "openai": openai.OpenAI(base_url=url, api_key="none", max_retries=0).chat.completions.create,
}
for Server.text in ("plain", "line\u2028line", "line\u0085line"):
    for Server.escaped in (False, True):
        seen = {name: read(chat) for name, chat in clients.items()}
        print(f"{ascii(Server.text)}, escaped in JSON: {Server.escaped}:", {f"{n} {version(n)}": ascii(s) for n, s in seen.items()})
        fails = Server.text != "plain" and not Server.escaped
        assert seen == {"huggingface_hub": "JSONDecodeError" if fails else Server.text, "openai": Server.text}, "changed"
server.shutdown()
PY
