#!/usr/bin/env bash
# SGLang's reader of GLM-4.5 tool calls, as packaged in llm-router-utils 0.8.1.
# Expected: an argument declared `string` is the text between its tags, and a streamed reply gives the same arguments as the
#           same reply read at once.
# Seen:     read at once, the text `true` becomes "True", `null` becomes "None" (Python's spelling) and `{"a":1}` is
#           written anew with a blank; streamed, the first and the last are untouched. So a client sees other arguments
#           with `stream: true` than without.
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
from llm_router_utils.sglang.srt.function_call.glm4_moe_detector import Glm4MoeDetector

schema = {"type": "object", "properties": {"text": {"type": "string"}}}
tools = [Tool(type="function", function=Function(name="say", parameters=schema))]


def whole(reply):
    (call,) = Glm4MoeDetector().detect_and_parse(reply, tools).calls
    return json.loads(call.parameters)["text"]


def streamed(reply):
    reader, arguments = Glm4MoeDetector(), ""
    for start in range(0, len(reply), 5):
        for call in reader.parse_streaming_increment(reply[start : start + 5], tools).calls:
            arguments += call.parameters or ""
    return json.loads(arguments)["text"]


print("llm-router-utils", version("llm-router-utils"))
seen = {}
for text in ("true", "null", '{"a":1}', "Rome"):
    reply = f"<tool_call>say\n<arg_key>text</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>"
    seen[text] = whole(reply), streamed(reply)
    print(f"the model wrote {text!r}: read at once {seen[text][0]!r}, streamed {seen[text][1]!r}")
assert seen["Rome"] == ("Rome", "Rome"), seen
assert seen["true"] == ("True", "true"), "changed"
assert seen["null"][0] == "None", "changed"
assert seen['{"a":1}'] == ('{"a": 1}', '{"a":1}'), "changed"
PY
