#!/usr/bin/env bash
# The OpenAI SDK for Python, 3.57.0, and SDKs made by the same generator (groq 1.7.0, together 3.1.1), reading a stream whose
# events have an `id`, as a server sends them that lets clients resume.
# Expected: a keep-alive (`: ping` and an empty line) is no event, with ids as without.
# Seen:     once an event had an id, each keep-alive becomes an event without data, and its parsing as JSON ends the stream with
#           a JSONDecodeError. Without ids comments do no harm. So a server may send ids or keep-alives to these SDKs, not both.
#           mistralai 3.7.0 reads the stream.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" --quiet --disable-pip-version-check install openai==3.57.0 groq==1.7.0 together==3.1.1 mistralai==3.7.0
"$dir/venv/bin/python" - <<'PY'
import http.server
import json
import threading
from importlib.metadata import version

import groq
import openai
import together
from mistralai.client import Mistral

HEAD = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m"}
DELTAS = [({"role": "assistant", "content": "hel"}, None), ({"content": "lo"}, None), ({}, "stop")]
CHUNKS = [{**HEAD, "choices": [{"index": 0, "delta": delta, "finish_reason": end}]} for delta, end in DELTAS]
ASKED = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


class Server(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        body = ""
        for i, event in enumerate([*map(json.dumps, CHUNKS), "[DONE]"]):
            body += f"id: {i}\n" * Server.ids + f"data: {event}\n\n" + ": ping\n\n" * Server.pings
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_): ...


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}"
key = {"api_key": "none"}
clients = {
    "openai": openai.OpenAI(base_url=url, max_retries=0, **key),
    "groq": groq.Groq(base_url=url, max_retries=0, **key),
    "together": together.Together(base_url=url, max_retries=0, **key),
    "mistralai": Mistral(server_url=url, **key),
}


def read(name):
    try:
        if name == "mistralai":
            chunks = [event.data for event in clients[name].chat.stream(**ASKED)]
        else:
            chunks = list(clients[name].chat.completions.create(**ASKED, stream=True))
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    except Exception as error:
        return type(error).__name__


for Server.ids, Server.pings in ((True, False), (False, True), (True, True)):
    seen = {f"{name} {version(name)}": read(name) for name in clients}
    print(f"ids: {Server.ids}, keep-alives: {Server.pings}:", seen)
    expected = ["JSONDecodeError"] * 3 if Server.ids and Server.pings else ["hello"] * 3
    assert list(seen.values()) == [*expected, "hello"], "changed"
server.shutdown()
PY
