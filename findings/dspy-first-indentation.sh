#!/usr/bin/env bash
# dspy 3.4.1, whose ChatAdapter (the one by default) reads the fields of a signature from a model's reply.
# Expected: the text of a field as the model wrote it, without the line breaks next to the marks, in every adapter.
# Seen:     ChatAdapter takes all white space off both ends, so the first line of code that continues a function loses its
#           indentation (only the first: the result is no Python). JSONAdapter keeps it. XMLAdapter does either: plain text
#           is stripped, text with XML in it keeps even the line breaks next to the field's own tags.
source "$(dirname "$0")/begin.sh"
from_pypi dspy==3.4.1
export LITELLM_LOCAL_MODEL_COST_MAP=True
python - 2>/dev/null <<'PY'
import json
from importlib.metadata import version

import dspy


class Complete(dspy.Signature):
    task: str = dspy.InputField()
    body: str = dspy.OutputField()


def chat(text):
    return dspy.ChatAdapter().parse(Complete, f"[[ ## body ## ]]\n{text}\n\n[[ ## completed ## ]]")["body"]


def as_json(text):
    return dspy.JSONAdapter().parse(Complete, json.dumps({"body": text}))["body"]


def xml(text):
    return dspy.XMLAdapter().parse(Complete, f"<body>\n{text}\n</body>")["body"]


seen = {}
for text in ("return 1", "    x = 1\n    return x", "<b>x</b>"):
    seen[text] = chat(text), as_json(text), xml(text)
    print(f"dspy {version('dspy')}, {text!r}: chat {seen[text][0]!r}, JSON {seen[text][1]!r}, XML {seen[text][2]!r}")
assert seen["return 1"] == ("return 1",) * 3, seen
stripped, kept = "x = 1\n    return x", "    x = 1\n    return x"
assert seen[kept] == (stripped, kept, stripped), "changed"
assert seen["<b>x</b>"] == ("<b>x</b>", "<b>x</b>", "\n<b>x</b>\n"), "changed"
PY
