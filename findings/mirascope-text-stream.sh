#!/usr/bin/env bash
# mirascope 2.8.2, reading a streamed chat completion with `text_stream()`, its method for showing text as it arrives.
# Expected: what it yields, put together, is `text()` of the whole reply, as its documentation says; calls of tools are passed over.
# Seen:     a newline that nobody wrote follows the text. A reply with two calls, even in the plainest order, raises `RuntimeError:
#           Expected start chunk` and so gives no calls either; with one call all is well. `finish()` reads all of these rightly.
source "$(dirname "$0")/begin.sh"
from_pypi "mirascope[openai]==2.8.2" openai==2.54.0
python - "$findings/two-calls.json" <<'PY'
import json
import sys

calls = json.load(open(sys.argv[1]))["follow"]
replies = {
    "text": [[{"role": "assistant", "content": "hel"}, None], [{"content": "lo"}, None], [{}, "stop"]],
    "one call": [*calls[:2], calls[-1]],
    "two calls": calls,
}
json.dump(replies, open("replies.json", "w"))
PY
serve replies.json
python - <<'PY'
import os
from importlib.metadata import version

from mirascope import llm

llm.register_provider("openai:completions", scope="openai/", base_url=os.environ["url"], api_key="none")


@llm.tool
def heat(room: str) -> str:
    """Heat a room."""
    return "ok"


def told(reply):
    return reply.text(), [call.args for call in reply.tool_calls]


seen = {}
for name in ("text", "one call", "two calls"):
    model = llm.Model(f"openai/{name}")
    finished, shown = model.stream("hi", tools=[heat]), model.stream("hi", tools=[heat])
    finished.finish()
    try:
        text = "".join(shown.text_stream())
        rest = told(shown)
    except RuntimeError as error:
        text, rest = f"RuntimeError: {error}", None
    seen[name] = told(finished), text, rest
    print(f"mirascope {version('mirascope')}, {name}: finish() {told(finished)}, text_stream() {text!r}, then {rest}")
a, b = '{"room":"a"}', '{"room":"b"}'
assert seen["text"] == (("hello", []), "hello\n", ("hello", [])), "changed"
assert seen["one call"] == (("", [a]), "", ("", [a])), "changed"
assert seen["two calls"][0] == ("", [a, b]) and seen["two calls"][1].startswith("RuntimeError: Expected start"), "changed"
PY
