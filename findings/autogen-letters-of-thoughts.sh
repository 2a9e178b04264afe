#!/usr/bin/env bash
# AutoGen's client of OpenAI-compatible servers (autogen-ext 0.7.5), reading a streamed reply with `reasoning_content`, as
# llama-server, vLLM and DeepSeek send thoughts.
# Expected: the thoughts are the result's `thought`, as in a reply that is not streamed.
# Seen:     letters of `think` are taken off both ends: `the answer: Paris, I think` becomes `e answer: Paris, I `. (The client
#           puts the thoughts between tags and takes the tags off by their letters.) The pieces of the stream are the thoughts,
#           with <think> and </think> that nobody wrote, and the answer, in one row.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" --quiet --disable-pip-version-check install "autogen-ext[openai]==0.7.5" autogen-core==0.7.5 openai==2.54.0
"$dir/venv/bin/python" - <<'PY'
import asyncio
import http.server
import json
import threading
from importlib.metadata import version

from autogen_core.models import UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient

HEAD = {"id": "c", "created": 0, "model": "m"}
THOUGHTS = ("the answer: Paris, I think", "Easy.")


def choice(end=None, **message):
    return [{"index": 0, **message, "finish_reason": end}]


class Server(http.server.BaseHTTPRequestHandler):
    thoughts = ""

    def do_POST(self):
        stream = json.loads(self.rfile.read(int(self.headers["content-length"]))).get("stream", False)
        if stream:
            deltas = [{"role": "assistant", "reasoning_content": self.thoughts}, {"content": "Paris"}]
            parts = [*(choice(delta=delta) for delta in deltas), choice("stop", delta={})]
            events = [json.dumps({**HEAD, "object": "chat.completion.chunk", "choices": part}) for part in parts]
            body = "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"])
        else:
            message = {"role": "assistant", "content": "Paris", "reasoning_content": self.thoughts}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            body = json.dumps({**HEAD, "object": "chat.completion", "choices": choice("stop", message=message), "usage": usage})
        self.send_response(200)
        self.send_header("content-type", "text/event-stream" if stream else "application/json")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_): ...


async def main(url):
    info = {"vision": False, "function_calling": True, "json_output": True, "structured_output": True, "family": "unknown"}
    question = [UserMessage(content="The capital of France?", source="user")]
    client = OpenAIChatCompletionClient(model="m", base_url=url, api_key="none", max_retries=0, model_info=info)
    seen = []
    for Server.thoughts in THOUGHTS:
        whole = await client.create(question)
        *pieces, streamed = [part async for part in client.create_stream(question)]
        seen.append((whole.thought, streamed.thought))
        print(f"autogen-ext {version('autogen-ext')}: whole {whole.thought!r}, streamed {streamed.thought!r}, pieces {pieces}")
        assert pieces == [f"<think>{Server.thoughts}", "</think>", "Paris"], "changed"
    await client.close()
    assert seen == [(THOUGHTS[0], "e answer: Paris, I "), ("Easy.", "Easy.")], "changed"


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
asyncio.run(main(f"http://127.0.0.1:{server.server_port}"))
server.shutdown()
PY
