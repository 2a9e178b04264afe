#!/usr/bin/env bash
# @strands-agents/sdk 1.19.0, Strands Agents for TypeScript, with Chat Completions (`api: "chat"`).
# Expected: a reply that calls two tools runs both. `index` tells to which call a piece belongs.
# Seen:     of two calls only the last one runs; the first is lost without a word, and the next request does not have it either. It
#           is so with the plainest stream, one call after the other, and where the whole calls come in one chunk. Where
#           pieces alternate, or text comes between two pieces of one call, the agent fails. Strands for Python
#           (strands-agents 1.62.0) runs both in each.
source "$(dirname "$0")/begin.sh"
from_pypi "strands-agents[openai]==1.62.0" openai==2.54.0
from_npm @strands-agents/sdk@1.19.0 openai@6.49.0 zod@4.1.12
python - "$findings/two-calls.json" <<'PY'
import json
import sys

calls = [
    {"index": i, "id": id, "type": "function", "function": {"name": "heat", "arguments": json.dumps({"room": room})}}
    for i, (id, room) in enumerate((("x", "a"), ("y", "b")))
]
replies = json.load(open(sys.argv[1]))
replies["whole"] = [[{"role": "assistant", "tool_calls": calls}, None], [{}, "tool_calls"]]
begin, rest = ({"index": 0, "function": {"arguments": part}} for part in ('{"room":', '"a"}'))
begin = {**calls[0], "function": {"name": "heat", **begin["function"]}}
replies["text between"] = [
    [{"role": "assistant", "tool_calls": [begin]}, None], [{"content": "Wait."}, None], [{"tool_calls": [rest]}, None],
    [{}, "tool_calls"],
]
json.dump(replies, open("replies.json", "w"))
PY
serve replies.json
cat > ask.mjs <<'JS'
import { Agent, tool } from "@strands-agents/sdk";
import { OpenAIModel } from "@strands-agents/sdk/models/openai";
import { z } from "zod";
const seen = {};
for (const modelId of ["follow", "whole", "alternate", "text between"]) {
  const ran = [];
  const callback = ({ room }) => {
    ran.push(room);
    return "ok";
  };
  const heat = tool({ name: "heat", description: "Heat a room.", inputSchema: z.object({ room: z.string() }), callback });
  const model = new OpenAIModel({ api: "chat", modelId, apiKey: "none", clientConfig: { baseURL: process.env.url } });
  const agent = new Agent({ model, tools: [heat], printer: false });
  let end;
  try {
    end = (await agent.invoke("hi")).stopReason;
  } catch (error) {
    end = error.name;
  }
  const kept = agent.messages.flatMap((message) => message.content).filter((block) => block.type === "toolUseBlock");
  seen[modelId] = [ran, kept.length, end];
}
console.log(JSON.stringify(seen));
JS
node ask.mjs >theirs.json 2>log
python - <<'PY'
import json
import os
from importlib.metadata import version

from strands import Agent, tool
from strands.models.openai import OpenAIModel

theirs = json.load(open("theirs.json"))
for name, (ran, kept, end) in theirs.items():
    right = []

    @tool
    def heat(room: str) -> str:
        """Heat a room."""
        right.append(room)
        return "ok"

    model = OpenAIModel(client_args={"base_url": os.environ["url"], "api_key": "none"}, model_id=name)
    Agent(model=model, tools=[heat], callback_handler=None)("hi")
    print(f"{name}: @strands-agents/sdk 1.19.0 ran {ran}, kept {kept} call(s), ended with {end};", end=" ")
    print(f"strands-agents {version('strands-agents')} ran {sorted(right)}")
    assert sorted(right) == (["a"] if name == "text between" else ["a", "b"]), right
assert theirs["follow"] == theirs["whole"] == [["b"], 1, "endTurn"], "changed"
assert theirs["alternate"] == theirs["text between"] == [[], 0, "ModelError"], "changed"
PY
