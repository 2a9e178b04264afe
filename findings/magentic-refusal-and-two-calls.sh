#!/usr/bin/env bash
# magentic 0.41.1, functions that are answered by a model, with an OpenAI-compatible server (it streams each reply).
# Expected: a reply that is a refusal raises an error that tells it, or is the text. Two calls of tools are read by `index`, so
#           their pieces may alternate.
# Seen:     a refusal raises a bare `StopIteration`, without its text. Of calls whose pieces alternate it says that they do not fit
#           the tool (`ToolSchemaParseError`), with no arguments yet. Calls that follow each other are read.
source "$(dirname "$0")/begin.sh"
from_pypi magentic==0.41.1 openai==3.57.0
python - "$findings/two-calls.json" <<'PY'
import json
import sys

replies = json.load(open(sys.argv[1]))
replies["refusal"] = [[{"role": "assistant", "refusal": "I can"}, None], [{"refusal": "not do that"}, None], [{}, "stop"]]
json.dump(replies, open("replies.json", "w"))
PY
serve replies.json
python - <<'PY'
import os
from importlib.metadata import version

from magentic import OpenaiChatModel, ParallelFunctionCall, UserMessage


def heat(room: str) -> str:
    """Heat a room."""
    return "ok"


def ask(name, **how):
    model = OpenaiChatModel(name, base_url=os.environ["url"], api_key="none")
    try:
        content = model.complete([UserMessage("hi")], **how).content
        return content if isinstance(content, str) else [call.arguments for call in content]
    except Exception as error:
        return f"{type(error).__name__} {error}".strip()


calls = {"functions": [heat], "output_types": [str, ParallelFunctionCall[str]]}
follow, alternate, refusal = ask("follow", **calls), ask("alternate", **calls), ask("refusal", output_types=[str])
print(f"magentic {version('magentic')}, calls follow: {follow}; alternate: {alternate[:90]}")
print(f"refusal: {refusal}")
assert follow == [{"room": "a"}, {"room": "b"}], follow
assert alternate.startswith("ToolSchemaParseError") and "'arguments': ''" in alternate, "changed"
assert refusal == "StopIteration", "changed"
PY
