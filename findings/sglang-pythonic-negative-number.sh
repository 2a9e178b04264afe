#!/usr/bin/env bash
# SGLang's reader of pythonic tool calls (Llama 4 and others), as packaged in llm-router-utils 0.8.1.
# Expected: `[set_heat(degrees=-5)]` is a call with degrees -5, as `[set_heat(degrees=5)]` is one with 5.
# Seen:     with a negative number there is no call and no text either: the whole reply disappears. A negative number
#           inside a list or a dict does the same. SGLang's reader of LFM2, whose calls are Python too, reads both.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
pip="$dir/venv/bin/pip --quiet --disable-pip-version-check install"
$pip openai==3.57.0 orjson==3.13.0 partial-json-parser==0.2.1.1.post7 pydantic==2.14.4
$pip --no-deps llm-router-utils==0.8.1
"$dir/venv/bin/python" - <<'PY'
import logging
from importlib.metadata import version

from llm_router_utils.sglang.srt.entrypoints.openai.protocol import Function, Tool
from llm_router_utils.sglang.srt.function_call.lfm2_detector import Lfm2Detector
from llm_router_utils.sglang.srt.function_call.pythonic_detector import PythonicDetector

logging.disable(logging.CRITICAL)
tools = [Tool(type="function", function=Function(name="set_heat", parameters={"type": "object"}))]


def read(reader, text):
    result = reader.detect_and_parse(text, tools)
    return result.normal_text, [call.parameters for call in result.calls]


print("llm-router-utils", version("llm-router-utils"))
seen = {}
for value in ("5", "-5", "[-5]"):
    text = f"[set_heat(degrees={value})]"
    seen[value] = read(PythonicDetector(), text)
    lfm2 = read(Lfm2Detector(), f"<|tool_call_start|>{text}<|tool_call_end|>")
    print(f"{text}: pythonic (text, calls) = {seen[value]}, lfm2 = {lfm2}")
    assert lfm2 == ("", [f'{{"degrees": {value}}}']), lfm2
assert seen["5"] == ("", ['{"degrees": 5}']), seen
assert seen["-5"] == seen["[-5]"] == ("", []), "changed: a negative number no longer loses the call"
PY
