#!/usr/bin/env bash
# agno 3.1.10, a framework for agents, calling a tool that takes text.
# Expected: an argument declared `string` that the model wrote as a JSON string reaches the tool as this string.
# Seen:     `true`, `false`, `null` and `None`, in any case, become Python values. A tool declared `text: str | None` gets None and
#           takes it for an argument left out; one declared `text: str` fails, and the model is told that its string is no
#           string. So an agent cannot search code for `None` or write `true` into a file. Other texts arrive as they are.
source "$(dirname "$0")/begin.sh"
from_pypi agno==3.1.10 openai==3.57.0
python - <<'PY'
import json

replies = {}
for text in ("none of it", "null", "None", "true"):
    arguments = json.dumps({"text": text})
    for tool in ("optional", "required"):
        call = {"index": 0, "id": "x", "type": "function", "function": {"name": tool, "arguments": arguments}}
        replies[f"{tool} {text}"] = [[{"role": "assistant", "tool_calls": [call]}, None], [{}, "tool_calls"]]
json.dump(replies, open("replies.json", "w"))
PY
serve replies.json
python - 2>/dev/null <<'PY'
import json
import os
from importlib.metadata import version

from agno.agent import Agent
from agno.models.openai.like import OpenAILike
from agno.utils.log import logger

logger.disabled = True
got = []


def optional(text: str | None = None) -> str:
    """Keep text."""
    got.append(text)
    return "kept"


def required(text: str) -> str:
    """Keep text."""
    got.append(text)
    return "kept"


seen = {}
for model in json.load(open("replies.json")):
    got.clear()
    agent = Agent(
        model=OpenAILike(id=model, api_key="none", base_url=os.environ["url"]), tools=[optional, required], telemetry=False
    )
    list(agent.run("hi", stream=True))
    tool, text = model.split(" ", 1)
    seen.setdefault(text, {})[tool] = list(got)
for text, of in seen.items():
    print(f"agno {version('agno')}, the model wrote {text!r}: `str | None` got {of['optional']}, `str` got {of['required']}")
assert seen["none of it"] == {"optional": ["none of it"], "required": ["none of it"]}, seen
for text in ("null", "None"):
    assert seen[text] == {"optional": [None], "required": []}, "changed"
assert seen["true"]["required"] == [], "changed"
PY
