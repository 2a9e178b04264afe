#!/usr/bin/env bash
# codex-relay 0.5.8, codex-bridge-python 0.1.5, codex-cc 0.1.0 and agent-wire-proxy 0.2.0, which offer the Responses API
# in front of a server that has Chat Completions alone, so that Codex and OpenAI's SDK can use it.
# Expected: a reply that the token limit cuts (`finish_reason: length`) has the status `incomplete`, by which Responses
#           tells it, also where a call of a tool is cut; an error of the server in the stream (`data: {"error": ...}`,
#           as llama-server and vLLM send it) is a failure; a refusal is told.
# Seen:     all four say `completed` for a cut text and for a call that is half written. agent-wire-proxy makes valid
#           JSON of the half: arguments named `arguments`, which no tool has. codex-cc and agent-wire-proxy say
#           `completed` for a reply that breaks off with the server's error, with what there was of it. A refusal is an
#           empty answer in all four.
source "$(dirname "$0")/begin.sh"
from_pypi codex-relay==0.5.8 codex-bridge-python==0.1.5 codex-cc==0.1.0 agent-wire-proxy==0.2.0 openai==3.57.0
python - <<'PY'
import json

call = {"index": 0, "id": "x", "type": "function", "function": {"name": "heat", "arguments": '{"room":"ki'}}
replies = {
    "whole": [[{"content": "Yes, "}, None], [{"content": "do."}, None], [{}, "stop"]],
    "cut text": [[{"content": "Yes, "}, None], [{"content": "but"}, None], [{}, "length"]],
    "cut call": [[{"tool_calls": [call]}, None], [{}, "length"]],
    "refusal": [[{"refusal": "I can"}, None], [{"refusal": "not."}, None], [{}, "stop"]],
    "breaks off": [[{"content": "Yes, but"}, None], {"error": {"message": "out of memory", "code": 500}}],
}
json.dump(replies, open("replies.json", "w"))
models = [{"id": name, "target": "URL", "upstream_api": "chat_completions"} for name in replies]
lines = [f"[[models]]\n{''.join(f'{key} = {json.dumps(value)}{chr(10)}' for key, value in m.items())}" for m in models]
open("models.toml", "w").write('[proxy]\ndefault_model = "whole"\n' + "\n".join(lines))
PY
serve replies.json
sed -i "s|URL|${url%/v1}|" models.toml
HOME="$dir" python - <<'PY'
import json
import os
import socket
import subprocess
import time
from importlib.metadata import version

import openai

URL = os.environ["url"]
os.environ.update(CODEX_CC_BRIDGE_KEY="none", DEEPSEEK_API_KEY="none", DEEPSEEK_BASE_URL=URL, DEEPSEEK_FORCE_MODEL="0")
BRIDGES = {
    "codex-relay": ["codex-relay", "--upstream", URL, "--api-key", "none", "--port", "PORT"],
    "codex-bridge-python": ["codex-bridge-python", "--upstream", URL, "--api-key", "none", "--port", "PORT"],
    "codex-cc": ["uvicorn", "codex_cc.app:app", "--port", "PORT"],
    "agent-wire-proxy": ["agent-wire-proxy", "--config", "models.toml", "--listen", "127.0.0.1:PORT"],
}


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def told(item):
    if item.type == "function_call":
        return json.loads(f"[{json.dumps(item.arguments)}]")
    return "".join(part.refusal if part.type == "refusal" else part.text for part in item.content)


def ask(client, name):
    tool = {"type": "function", "name": "heat", "parameters": {"type": "object"}, "strict": False}
    for event in client.responses.create(model=name, input="hi", tools=[tool], stream=True):
        if event.type in ("response.completed", "response.incomplete", "response.failed"):
            return event.response.status, [told(item) for item in event.response.output or []]


def asked(command):
    port = free_port()
    command = [part.replace("PORT", str(port)) for part in command]
    bridge = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            time.sleep(0.1)
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)
        return {name: ask(client, name) for name in ("whole", "cut text", "cut call", "refusal", "breaks off")}
    finally:
        bridge.terminate()
        bridge.wait()


seen = {}
for name, command in BRIDGES.items():
    seen[name] = asked(command)
    print(name, version(name))
    for case, reply in seen[name].items():
        print(f"  {case}: {reply}")
for name, replies in seen.items():
    assert replies["whole"] == ("completed", ["Yes, do."]), replies
    assert replies["cut text"] == ("completed", ["Yes, but"]), "changed"
    half = '{"arguments":"{\\"room\\":\\"ki"}' if name == "agent-wire-proxy" else '{"room":"ki'
    assert replies["cut call"] == ("completed", [[half]]), "changed"
    assert replies["refusal"] in (("completed", []), ("completed", [""])), "changed"
    wrong = name in ("codex-cc", "agent-wire-proxy")
    assert replies["breaks off"] == (("completed", ["Yes, but"]) if wrong else ("failed", [])), "changed"
PY
