#!/usr/bin/env bash
# ant2oai 0.1.6 (a2o) and agent-wire-proxy 0.2.0, which offer Anthropic's Messages API in front of an OpenAI-compatible
# server, so that Claude Code and Anthropic's SDK can use it.
# Expected: a request reaches the server as it was meant: no temperature where none was set, `stop_sequences`, earlier
#           calls of tools and their results (agent-wire-proxy names tools and tool results as covered). In a stream
#           the thoughts stand before the answer, an error of the server is an error, and `stop_reason` is `tool_use`
#           where a tool is to run and `max_tokens` where the limit cut the call.
# Seen:     agent-wire-proxy asks for temperature 0 where none was set, drops `stop_sequences` and `tool_choice: none`,
#           and writes earlier calls and results into the text ("Tool call x: heat(...)"), so that the model sees no
#           call; a call that the limit cut stops with `tool_use` and no arguments, as if it could run. ant2oai tells
#           `end_turn` for a call that ends with `stop`, as OpenAI's servers end a call that was demanded, and where one
#           chunk has the end of the thoughts and the beginning of the answer, it cuts both in two and mixes them; a
#           character U+2028 loses its chunk. Both end with `end_turn` after the server's error, as if all was said.
source "$(dirname "$0")/begin.sh"
from_pypi ant2oai==0.1.6 agent-wire-proxy==0.2.0 anthropic==2.15.0
HOME="$dir" python - <<'PY'
import http.server
import json
import socket
import subprocess
import threading
import time
from importlib.metadata import version

import anthropic

CALL = {"index": 0, "id": "x", "type": "function", "function": {"name": "heat", "arguments": '{"room":"a"}'}}
CUT = {**CALL, "function": {"name": "heat", "arguments": '{"room":"ki'}}
THOUGHT_AND_ANSWER = {"reasoning_content": " see.", "content": "Yes"}
STREAMS = {  # deltas, and how the reply ends
    "demanded": ([{"tool_calls": [CALL]}], "stop"),
    "cut": ([{"tool_calls": [CUT]}], "length"),
    "thoughts": ([{"reasoning_content": "Let me"}, THOUGHT_AND_ANSWER, {"content": "."}], "stop"),
    "separator": ([{"content": "one\u2028two"}, {"content": " three"}], "stop"),
    "error": ([{"content": "Yes, but"}], None),
}
requests = []


class Server(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        requests.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        if not requests[-1].get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}
            self.reply("application/json", json.dumps({"id": "c", "model": "m", "choices": [choice]}))
            return
        deltas, end = STREAMS[requests[-1]["model"]]
        pieces = [(delta, None) for delta in deltas] + ([({}, end)] if end else [])
        choices = [{"index": 0, "delta": delta, "finish_reason": reason} for delta, reason in pieces]
        events = [json.dumps({"id": "c", "model": "m", "choices": [choice]}, ensure_ascii=False) for choice in choices]
        events.append("[DONE]" if end else json.dumps({"error": {"message": "out of memory", "code": 500}}))
        self.reply("text/event-stream", "".join(f"data: {event}\n\n" for event in events))

    def reply(self, kind, text):
        body = text.encode()
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
HOST = f"http://127.0.0.1:{server.server_port}"
with open("models.toml", "w") as file:
    file.write('[proxy]\ndefault_model = "m"\n')
    for name in ["m", *STREAMS]:
        file.write(f'[[models]]\nid = "{name}"\ntarget = "{HOST}"\nupstream_api = "chat_completions"\n')
BRIDGES = {
    "ant2oai": ["a2o", "--upstream", f"{HOST}/v1/chat/completions", "--port", "PORT"],
    "agent-wire-proxy": ["agent-wire-proxy", "--config", "models.toml", "--listen", "127.0.0.1:PORT"],
}
TOOL = {"name": "heat", "description": "Heat.", "input_schema": {"type": "object", "properties": {}}}
HISTORY = [
    {"role": "user", "content": "Heat a."},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": "heat", "input": {"room": "a"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": "ok"}]},
]


def asked(client):
    """Return what reaches the server of requests that are not streamed."""
    ask = {"model": "m", "max_tokens": 9, "tools": [TOOL], "messages": [{"role": "user", "content": "hi"}]}
    client.messages.create(**ask, stop_sequences=["END"])
    temperature, stop = requests[-1].get("temperature"), requests[-1].get("stop")
    client.messages.create(**ask, tool_choice={"type": "none"})
    choice = requests[-1].get("tool_choice")
    client.messages.create(**{**ask, "messages": HISTORY})
    return temperature, stop, choice, [message["role"] for message in requests[-1]["messages"]]


def streamed(client, name):
    """Return the reply's reason to stop and its blocks."""
    ask = {"model": name, "max_tokens": 9, "tools": [TOOL], "messages": [{"role": "user", "content": "hi"}]}
    with client.messages.stream(**ask) as stream:
        message = stream.get_final_message()
    blocks = [getattr(b, "input", None) if b.type == "tool_use" else getattr(b, b.type) for b in message.content]
    return message.stop_reason, blocks


seen = {}
for name, command in BRIDGES.items():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [part.replace("PORT", str(port)) for part in command]
    bridge = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            time.sleep(0.1)
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
        client = anthropic.Anthropic(base_url=f"http://127.0.0.1:{port}", api_key="none", max_retries=0)
        seen[name] = {"asked": asked(client)} | {case: streamed(client, case) for case in STREAMS}
    finally:
        bridge.terminate()
        bridge.wait()
    print(name, version(name))
    for case, value in seen[name].items():
        print(f"  {case}: {value}")
one, two = seen["ant2oai"], seen["agent-wire-proxy"]
assert one["asked"][0] is None and one["asked"][2:] == ("none", ["user", "assistant", "tool"]), one
assert two["asked"] == (0.0, None, None, ["user", "assistant", "user"]), "changed"
assert one["demanded"] == ("end_turn", [{"room": "a"}]), "changed"
assert two["demanded"] == ("tool_use", [{"room": "a"}]), two
assert one["cut"] == ("max_tokens", [{}]), one
assert two["cut"] == ("tool_use", [{}]), "changed"
assert one["thoughts"] == ("end_turn", ["Let me", "Yes", " see.", "."]), "changed"
assert one["separator"] == ("end_turn", [" three"]), "changed"
assert two["separator"] == ("end_turn", ["one\u2028two three"]), two
assert one["error"] == two["error"] == ("end_turn", ["Yes, but"]), "changed"
PY
