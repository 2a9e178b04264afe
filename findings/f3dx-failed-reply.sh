#!/usr/bin/env bash
# f3dx 0.0.19, a client written in Rust that stands in for OpenAI's SDK, with a stream that it puts together
# (`chat_completions_create_stream_assembled`).
# Expected: what OpenAI's SDK makes of the same streams: an error of the server (`data: {"error": ...}`, as llama-server and vLLM
#           send it once a reply has begun) raises; with `n: 2` each piece of text tells which reply it belongs to.
# Seen:     the failed reply ends with an event `done` like a whole one, only that its finish reason is None. Pieces of text have
#           no number of their reply, so two replies are mixed; nor has the end, which is told once, with the last reason.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" --quiet --disable-pip-version-check install f3dx==0.0.19 openai==3.57.0
"$dir/venv/bin/python" - <<'PY'
import http.server
import json
import threading
from importlib.metadata import version

import f3dx
import openai

HEAD = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m"}


def chunk(index, text, end=None):
    delta = {"content": text} if text else {}
    return {**HEAD, "choices": [{"index": index, "delta": delta, "finish_reason": end}]}


error = {"error": {"message": "out of memory", "type": "server_error", "code": 500}}
STREAMS = {
    "failed": [chunk(0, "Take the first"), error],
    "two": [chunk(0, "yes"), chunk(1, "no"), chunk(0, "!"), chunk(1, "?"), chunk(0, "", "stop"), chunk(1, "", "length")],
}


class Server(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        events = [json.dumps(part) for part in STREAMS[self.path.split("/")[1]]]
        body = "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]).encode()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_): ...


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
asked = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
theirs, right = {}, {}
for name in STREAMS:
    url = f"http://127.0.0.1:{server.server_port}/{name}"
    theirs[name] = list(f3dx.OpenAI(api_key="none", base_url=url, http2=False).chat_completions_create_stream_assembled(asked))
    replies = {}
    try:
        client = openai.OpenAI(api_key="none", base_url=url, max_retries=0)
        for part in client.chat.completions.create(**asked, stream=True):
            choice = part.choices[0]
            replies[choice.index] = replies.get(choice.index, "") + (choice.delta.content or "")
        right[name] = replies
    except openai.APIError as raised:
        right[name] = str(raised)
    print(f"{name}: openai {openai.__version__} {right[name]}, f3dx {version('f3dx')} {theirs[name]}")
server.shutdown()
assert right == {"failed": "out of memory", "two": {0: "yes!", 1: "no?"}}, right
text = [{"type": "delta_content", "content": piece} for piece in ("yes", "no", "!", "?")]
assert theirs["failed"] == [
    {"type": "delta_content", "content": "Take the first"}, {"type": "done", "finish_reason": None}
], "changed"
assert theirs["two"] == [*text, {"type": "done", "finish_reason": "length"}], "changed"
PY
