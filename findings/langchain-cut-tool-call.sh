#!/usr/bin/env bash
# LangChain 1.5.2 with langchain-openai 1.7.4 and langchain-core 1.8.3, reading a streamed reply.
# Expected: arguments of a tool call that `max_tokens` cut (`finish_reason: "length"`) are no JSON, so there is no call, as in
#           a reply that is not streamed.
# Seen:     streamed, the cut text is closed and becomes a call: `{"to": "ann", "amount": 12`, which the model had not
#           finished, is 12. An agent runs the tool with it when its messages are streamed (`stream_mode="messages"`), and
#           does not run it with `invoke`. Also: usage that is told in every chunk (vLLM's `continuous_usage_stats`), each
#           time for the reply so far, is added up.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" --quiet --disable-pip-version-check install \
    langchain==1.5.2 langchain-openai==1.7.4 langchain-core==1.8.3 openai==3.3.0
"$dir/venv/bin/python" - <<'PY'
import http.server
import json
import threading

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

HEAD = {"id": "c", "created": 0, "model": "m"}
CALL = {"id": "1", "type": "function", "function": {"name": "pay", "arguments": '{"to": "ann", "amount": 12'}}


def usage(tokens):
    return {"prompt_tokens": 10, "completion_tokens": tokens, "total_tokens": 10 + tokens}


def chunk(delta, reason=None, tokens=None):
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    counts = {} if tokens is None else {"usage": usage(tokens)}
    return {**HEAD, "object": "chat.completion.chunk", "choices": [choice], **counts}


def cut(stream):
    if stream:
        return [chunk({"role": "assistant", "tool_calls": [{"index": 0, **CALL}]}), chunk({}, "length")]
    message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    choices = [{"index": 0, "message": message, "finish_reason": "length"}]
    return {**HEAD, "object": "chat.completion", "choices": choices, "usage": usage(9)}


def text(stream):
    if stream:
        return [chunk({"role": "assistant", "content": "a "}, tokens=1), chunk({"content": "b"}, "stop", 2)]
    message = {"role": "assistant", "content": "a b"}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    return {**HEAD, "object": "chat.completion", "choices": choices, "usage": usage(2)}


class Server(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        stream = asked.get("stream", False)
        reply = (cut if "tools" in asked and asked["messages"][-1]["role"] == "user" else text)(stream)
        body = json.dumps(reply)
        if stream:
            body = "".join(f"data: {json.dumps(part)}\n\n" for part in reply) + "data: [DONE]\n\n"
        self.send_response(200)
        self.send_header("content-type", "text/event-stream" if stream else "application/json")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_): ...


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
model = ChatOpenAI(base_url=f"http://127.0.0.1:{server.server_port}", api_key="none", model="m", max_retries=0)
paid = []


@tool
def pay(to: str, amount: int) -> str:
    """Pay an amount to somebody."""
    paid.append((to, amount))
    return "paid"


agent = create_agent(model, [pay])
question = {"messages": [("user", "Pay Ann 1250.")]}
agent.invoke(question)
print("agent.invoke paid", paid)
assert paid == [], "changed"
for _ in agent.stream(question, stream_mode="messages"):
    pass
print("agent.stream(stream_mode='messages') paid", paid)
assert paid == [("ann", 12)], "changed"
whole = model.invoke("hi").usage_metadata
streamed = None
for part in model.stream("hi"):
    streamed = part if streamed is None else streamed + part
counts = [(each["input_tokens"], each["output_tokens"]) for each in (whole, streamed.usage_metadata)]
print("tokens (prompt, reply) of the same reply, whole and streamed with usage in both chunks:", counts)
assert counts == [(10, 2), (20, 3)], "changed"
server.shutdown()
PY
