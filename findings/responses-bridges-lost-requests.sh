#!/usr/bin/env bash
# codex-relay 0.5.8, codex-bridge-python 0.1.5, codex-cc 0.1.0 and agent-wire-proxy 0.2.0, which offer the Responses API
# in front of a server that has Chat Completions alone, so that Codex and OpenAI's SDK can use it.
# Expected: the server is asked what the client asked for, or the client gets an error: `instructions` and a developer's
#           message both reach the model, `text.format` with a JSON schema is `response_format`, `tool_choice` stays
#           (a server of Chat Completions knows them), and `previous_response_id` continues a conversation.
# Seen:     codex-relay and codex-bridge-python keep one system message: the developer's takes the place of the
#           `instructions`, which the model never sees. The JSON schema is dropped by all four, so the reply is free
#           text. `tool_choice: required` is dropped by all but codex-cc. codex-cc and agent-wire-proxy know no
#           `previous_response_id`, and the second question is asked without the first. No error is raised.
source "$(dirname "$0")/begin.sh"
from_pypi codex-relay==0.5.8 codex-bridge-python==0.1.5 codex-cc==0.1.0 agent-wire-proxy==0.2.0 openai==3.57.0
HOME="$dir" python - <<'PY'
import http.server
import json
import os
import socket
import subprocess
import threading
import time
from importlib.metadata import version

import openai

requests = []


class Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.reply({"object": "list", "data": [{"id": "m", "object": "model", "created": 0, "owned_by": "none"}]})

    def do_POST(self):
        requests.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        message = {"role": "assistant", "content": "Yes."}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        self.reply({"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": choices})

    def reply(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
HOST = f"http://127.0.0.1:{server.server_port}"
URL = f"{HOST}/v1"
with open("models.toml", "w") as file:
    file.write(f'[proxy]\ndefault_model = "m"\n[[models]]\nid = "m"\ntarget = "{HOST}"\n')
    file.write('upstream_api = "chat_completions"\n')
os.environ.update(CODEX_CC_BRIDGE_KEY="none", DEEPSEEK_API_KEY="none", DEEPSEEK_BASE_URL=URL, DEEPSEEK_FORCE_MODEL="0")
BRIDGES = {
    "codex-relay": ["codex-relay", "--upstream", URL, "--api-key", "none", "--port", "PORT"],
    "codex-bridge-python": ["codex-bridge-python", "--upstream", URL, "--api-key", "none", "--port", "PORT"],
    "codex-cc": ["uvicorn", "codex_cc.app:app", "--port", "PORT"],
    "agent-wire-proxy": ["agent-wire-proxy", "--config", "models.toml", "--listen", "127.0.0.1:PORT"],
}


def asked(client):
    """Return what reaches the server of four requests."""
    ask = client.responses.create
    texts = [{"role": "developer", "content": "Ask first."}, {"role": "user", "content": "hi"}]
    ask(model="m", instructions="Be brief.", input=texts)
    system = " ".join(m["content"] for m in requests[-1]["messages"] if m["role"] == "system")
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    ask(model="m", input="hi", text={"format": {"type": "json_schema", "name": "s", "schema": schema}})
    format = requests[-1].get("response_format")
    tool = {"type": "function", "name": "heat", "parameters": {"type": "object"}, "strict": False}
    ask(model="m", input="hi", tools=[tool], tool_choice="required")
    assert len(requests[-1]["tools"]) == 1
    choice = requests[-1].get("tool_choice")
    first = ask(model="m", input="My name is Ann.")
    ask(model="m", input="Who am I?", previous_response_id=first.id)
    return system.split(), format, choice, len(requests[-1]["messages"])


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
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)
        seen[name] = asked(client)
    finally:
        bridge.terminate()
        bridge.wait()
    system, format, choice, messages = seen[name]
    print(f"{name} {version(name)}: system {' '.join(system)!r}, response_format {format}, tool_choice {choice},")
    print(f"  {messages} messages in the second question")
both, developer = ["Be", "brief.", "Ask", "first."], ["Ask", "first."]
assert seen == {
    "codex-relay": (developer, None, None, 3),
    "codex-bridge-python": (developer, None, None, 3),
    "codex-cc": (both, None, "required", 1),
    "agent-wire-proxy": (both, None, None, 1),
}, "changed"
PY
