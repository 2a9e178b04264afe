#!/usr/bin/env bash
# SGLang's reader of MiniMax-M2 tool calls, as packaged in llm-router-utils 0.8.1.
# Expected: a parameter declared `anyOf: [string, null]` (what Pydantic makes of `str | None`) keeps the text that the
#           model wrote, and is null only where the model wrote null.
# Seen:     every value becomes null, so "Rome" is lost without an error. SGLang's readers of Qwen3-Coder and GLM-4.5,
#           asked with the same declaration, keep it.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
pip="$dir/venv/bin/pip --quiet --disable-pip-version-check install"
$pip openai==3.57.0 orjson==3.13.0 partial-json-parser==0.2.1.1.post7 pydantic==2.14.4
$pip --no-deps llm-router-utils==0.8.1
"$dir/venv/bin/python" - <<'PY'
import json
from importlib.metadata import version

from llm_router_utils.sglang.srt.entrypoints.openai.protocol import Function, Tool
from llm_router_utils.sglang.srt.function_call.minimax_m2 import MinimaxM2Detector
from llm_router_utils.sglang.srt.function_call.qwen3_coder_detector import Qwen3CoderDetector

nullable = {"anyOf": [{"type": "string"}, {"type": "null"}]}
schema = {"type": "object", "properties": {"city": nullable, "street": {"type": "string"}}}
tools = [Tool(type="function", function=Function(name="find", parameters=schema))]
minimax = (
    '<minimax:tool_call>\n<invoke name="find">\n'
    '<parameter name="city">Rome</parameter>\n<parameter name="street">Via Appia</parameter>\n'
    "</invoke>\n</minimax:tool_call>"
)
qwen = (
    "<tool_call>\n<function=find>\n<parameter=city>\nRome\n</parameter>\n"
    "<parameter=street>\nVia Appia\n</parameter>\n</function>\n</tool_call>"
)
seen = {}
for name, reader, text in (("MiniMax-M2", MinimaxM2Detector(), minimax), ("Qwen3-Coder", Qwen3CoderDetector(), qwen)):
    (call,) = reader.detect_and_parse(text, tools).calls
    seen[name] = json.loads(call.parameters)
    print(f"llm-router-utils {version('llm-router-utils')}, {name}: {seen[name]}")
assert seen["Qwen3-Coder"] == {"city": "Rome", "street": "Via Appia"}, seen
assert seen["MiniMax-M2"] == {"city": None, "street": "Via Appia"}, "changed: the nullable text is kept now"
PY
