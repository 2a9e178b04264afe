#!/usr/bin/env bash
# LlamaIndex's client of OpenAI-compatible servers (llama-index-llms-openai-like 0.8.1 with llama-index-llms-openai 0.8.3),
# reading streamed calls of tools.
# Expected: every call, wherever the chunks end: a server that decodes several tokens in a step may send two calls in a chunk,
#           and `index` tells to which call a piece belongs. Arguments that `max_tokens` cut are no call.
# Seen:     of a chunk with two calls the second is lost without a word. Two calls whose pieces alternate become six, with
#           empty names and arguments. A call cut in `{"city": "Ro` runs with the city None.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" --quiet --disable-pip-version-check install llama-index-llms-openai-like==0.8.1 \
    llama-index-llms-openai==0.8.3 llama-index-core==0.14.25 openai==2.54.0
"$dir/venv/bin/python" - <<'PY'
import http.server
import json
import threading
from importlib.metadata import version

from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

HEAD = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m"}


def chunk(*calls, end=None):
    return {**HEAD, "choices": [{"index": 0, "delta": {"tool_calls": calls} if calls else {}, "finish_reason": end}]}


def begin(index, arguments=""):
    function = {"name": "weather", "arguments": arguments}
    return {"index": index, "id": f"call-{index}", "type": "function", "function": function}


def more(index, arguments):
    return {"index": index, "function": {"arguments": arguments}}


ROME, BONN = '{"city": "Rome"}', '{"city": "Bonn"}'
STREAMS = {
    "one after the other": [chunk(begin(0, ROME)), chunk(begin(1, BONN)), chunk(end="tool_calls")],
    "in one chunk": [chunk(begin(0, ROME), begin(1, BONN)), chunk(end="tool_calls")],
    "by turns": [
        *[chunk(begin(0)), chunk(begin(1))],
        *[chunk(more(i, text[at : at + 10])) for at in (0, 10) for i, text in enumerate((ROME, BONN))],
        chunk(end="tool_calls"),
    ],
    "cut": [chunk(begin(0, '{"city": "Ro')), chunk(end="length")],
}


class Server(http.server.BaseHTTPRequestHandler):
    stream = []

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        events = [*map(json.dumps, Server.stream), "[DONE]"]
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write("".join(f"data: {event}\n\n" for event in events).encode())

    def log_message(self, *_): ...


def weather(city: str) -> str:
    """Tell the weather in a city."""
    return "fine"


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}"
llm = OpenAILike("m", api_base=url, api_key="none", is_chat_model=True, is_function_calling_model=True, max_retries=0)
seen = {}
for name, Server.stream in STREAMS.items():
    *_, last = llm.stream_chat_with_tools([FunctionTool.from_defaults(weather)], user_msg="hi")
    calls = llm.get_tool_calls_from_response(last, error_on_no_tool_call=False)
    seen[name] = [(call.tool_name, call.tool_kwargs) for call in calls]
    print(f"llama-index-llms-openai {version('llama-index-llms-openai')}, two calls {name}:", seen[name])
server.shutdown()
rome, bonn = ("weather", {"city": "Rome"}), ("weather", {"city": "Bonn"})
assert seen["one after the other"] == [rome, bonn], seen
assert seen["in one chunk"] == [rome], "changed"
assert len(seen["by turns"]) == 6 and rome not in seen["by turns"], "changed"
assert seen["cut"] == [("weather", {"city": None})], "changed"
PY
