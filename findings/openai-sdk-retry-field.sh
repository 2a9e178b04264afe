#!/usr/bin/env bash
# The OpenAI SDK for Python, 3.57.0, reading a stream of server-sent events.
# Expected: an event without data is no message. The standard says so, and a server or proxy may send `retry: 1000` in an
#           event of its own to tell browsers when to reconnect.
# Seen:     the SDK parses the empty data as JSON and the stream ends with a JSONDecodeError before its first token. A comment
#           (`: ping`) does no harm. So keep-alives to this SDK must be comments, and resumable streams must not set `retry`
#           in an event of its own.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" --quiet --disable-pip-version-check install openai==3.57.0
"$dir/venv/bin/python" - <<'PY'
import http.server
import json
import threading

import openai

chunk = {
    "id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m",
    "choices": [{"index": 0, "delta": {"content": "hello"}, "finish_reason": None}],
}
FIRST = {"a comment": ": ping\n\n", "a retry field": "retry: 1000\n\n"}


class Server(http.server.BaseHTTPRequestHandler):
    first = ""

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        body = f"{Server.first}data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_): ...


server = http.server.HTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.server_port}", api_key="none", max_retries=0)
seen = {}
for name, Server.first in FIRST.items():
    try:
        stream = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], stream=True)
        seen[name] = "".join(part.choices[0].delta.content or "" for part in stream)
    except Exception as error:
        seen[name] = type(error).__name__
    print(f"openai {openai.__version__}, {name} before the first chunk: {seen[name]}")
server.shutdown()
assert seen == {"a comment": "hello", "a retry field": "JSONDecodeError"}, "changed"
PY
