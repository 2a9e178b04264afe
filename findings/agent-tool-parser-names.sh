#!/usr/bin/env bash
# agent-tool-parser 0.1.3, which reads tool calls from the text of models, for proxies and agents.
# Expected: the function's name and the arguments that the model wrote, as the tool declares them.
# Seen:     names come in small letters (`getWeather` is `getweather`, for which an agent has no tool), and arguments are
#           renamed (`query` is `pattern`, `file_path` is `path`) or lost (`input`). What a text argument has between
#           <think> and </think>, and these tags, is taken out of it. Its Rust engine and its Python engine agree on all of it.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" --quiet --disable-pip-version-check install agent-tool-parser==0.1.3
cat > "$dir/read.py" <<'PY'
import json

import agent_tool_parser

CALLS = {
    ("getWeather", '{"cityName": "Rome"}'): ("getweather", {"cityName": "Rome"}),
    ("search", '{"query": "cats"}'): ("search", {"pattern": "cats"}),
    ("read", '{"file_path": "a.py"}'): ("read", {"path": "a.py"}),
    ("run", '{"input": "2 + 2", "n": 1}'): ("run", {"n": 1}),
    ("run", '{"input": "2 + 2"}'): ("run", {}),
    ("write", '{"text": "Use <think>a</think> b."}'): ("write", {"text": "Use  b."}),
    ("write", '{"text": "plain"}'): ("write", {"text": "plain"}),
}
print("agent-tool-parser", agent_tool_parser.__version__, "engine:", "Rust" if agent_tool_parser.ACCELERATED else "Python")
for (name, arguments), expected in CALLS.items():
    text = f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
    (call,) = agent_tool_parser.try_parse_tool_calls(text)
    print(f"the model wrote {name} {arguments}: read {call.name} {json.dumps(call.args)}")
    assert (call.name, call.args) == expected, "changed"
PY
"$dir/venv/bin/python" "$dir/read.py"
AGENT_TOOL_PARSER_NO_EXT=1 "$dir/venv/bin/python" "$dir/read.py"
