#!/usr/bin/env bash
# pydantic-ai-slim 2.38.0 (Pydantic AI), reading replies of a model that writes its thoughts between <think> and </think>.
# Expected: the same text is split into thoughts and answer in the same place, however the server cuts it into chunks.
# Seen:     a tag counts only if it is a chunk of its own. A server that sends several tokens at once (vLLM with speculative
#           decoding or `--stream-interval`) may put </think> and the next word into one chunk: then the whole answer is
#           thought, and `run_stream` has no answer. With <think> and the next word in one chunk, all of it is the answer,
#           tags and thoughts included. Not streamed, and one token a chunk, it is right.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" --quiet --disable-pip-version-check install "pydantic-ai-slim[openai]==2.38.0" openai==3.3.0
"$dir/venv/bin/python" - <<'PY'
import asyncio
import http.server
import json
import threading

from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.messages import ModelRequest
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

CHUNKS = {
    "one token a chunk": ["<think>", "Easy", ".", "</think>", "Paris", "."],
    "two, end tag first": ["<think>", "Easy.", "</think>Paris", "."],
    "two, start tag first": ["<think>Easy", ".</think>", "Paris."],
}
HEAD = {"id": "c", "created": 0, "model": "m"}


def choice(reason, **message):
    return [{"index": 0, **message, "finish_reason": reason}]


class Server(http.server.BaseHTTPRequestHandler):
    chunks = []

    def do_POST(self):
        stream = json.loads(self.rfile.read(int(self.headers["content-length"]))).get("stream", False)
        if stream:
            deltas = [choice(None, delta={"role": "assistant", "content": text}) for text in self.chunks]
            parts = [*deltas, choice("stop", delta={})]
            events = [json.dumps({**HEAD, "object": "chat.completion.chunk", "choices": part}) for part in parts]
            body = "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"])
        else:
            message = choice("stop", message={"role": "assistant", "content": "".join(self.chunks)})
            body = json.dumps({**HEAD, "object": "chat.completion", "choices": message})
        self.send_response(200)
        self.send_header("content-type", "text/event-stream" if stream else "application/json")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_): ...


def parts_of(response):
    return [(part.part_kind, part.content) for part in response.parts]


async def main(url):
    model = OpenAIChatModel("m", provider=OpenAIProvider(base_url=url, api_key="none"))
    question = [ModelRequest.user_text_prompt("The capital of France?")]
    seen = {}
    for name, Server.chunks in CHUNKS.items():
        whole = parts_of(await model_request(model, question))
        async with model_request_stream(model, question) as stream:
            async for _ in stream:
                pass
        seen[name] = parts_of(stream.get())
        print(f"{name}: whole {whole}, streamed as {Server.chunks} {seen[name]}")
        assert whole == [("thinking", "Easy."), ("text", "Paris.")], "changed"
    assert list(seen.values()) == [
        [("thinking", "Easy."), ("text", "Paris.")],
        [("thinking", "Easy.</think>Paris.")],
        [("text", "<think>Easy.</think>Paris.")],
    ], "changed"


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
asyncio.run(main(f"http://127.0.0.1:{server.server_port}"))
server.shutdown()
PY
