#!/usr/bin/env bash
# huggingface_hub 2.4.0, whose InferenceClient is a client for any OpenAI-compatible server, streaming a reply.
# Expected: a stream that a function returns can be read, as with OpenAI's SDK 3.57.0.
# Seen:     the stream lives as long as its client: where nothing else holds the client (a helper that makes one and returns
#           the stream, or `InferenceClient(...).chat_completion(..., stream=True)` in a for loop), the first read raises
#           StreamClosed, though the server has answered.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" --quiet --disable-pip-version-check install huggingface_hub==2.4.0 openai==3.57.0
"$dir/venv/bin/python" - <<'PY'
import http.server
import json
import threading

import huggingface_hub
import openai

HEAD = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m"}
DELTAS = [({"role": "assistant", "content": "hel"}, None), ({"content": "lo"}, None), ({}, "stop")]
CHUNKS = [{**HEAD, "choices": [{"index": 0, "delta": delta, "finish_reason": end}]} for delta, end in DELTAS]
ASKED = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}


class Server(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        body = "".join(f"data: {event}\n\n" for event in [*map(json.dumps, CHUNKS), "[DONE]"]).encode()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_): ...


def text_of(stream):
    try:
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    except Exception as error:
        return type(error).__name__


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}/v1"
seen = {}
for name, make in (("huggingface_hub", huggingface_hub.InferenceClient), ("openai", openai.OpenAI)):

    def ask():
        return make(base_url=url, api_key="none").chat.completions.create(**ASKED)

    client = make(base_url=url, api_key="none")
    seen[name] = text_of(client.chat.completions.create(**ASKED)), text_of(ask())
versions = huggingface_hub.__version__, openai.__version__
for (name, texts), version in zip(seen.items(), versions):
    print(f"{name} {version}: with the client at hand {texts[0]!r}, without {texts[1]!r}")
server.shutdown()
assert seen["openai"] == ("hello", "hello"), seen
assert seen["huggingface_hub"] == ("hello", "StreamClosed"), "changed"
PY
