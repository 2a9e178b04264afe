#!/usr/bin/env bash
# The OpenAI SDKs for Python, 3.57.0, and JavaScript, 7.59.0: the events of `chat.completions.stream()`.
# Expected: `tool_calls.function.arguments.done` comes once for each call, with all of its arguments, and no `delta` of the call
#           comes afterwards. `index` tells to which call a piece belongs, so the pieces of two calls may alternate.
# Seen:     it comes whenever a piece of another call does. Python says that the arguments are "" and says nothing again;
#           JavaScript says it several times, with a part of the JSON each. Who runs a tool on this event runs it with that. The
#           completion at the end is right, and so are the events where one call follows the other.
source "$(dirname "$0")/begin.sh"
from_pypi openai==3.57.0
from_npm openai@7.59.0
serve "$findings/two-calls.json"
cat > read.mjs <<'JS'
import OpenAI from "openai";
const client = new OpenAI({ baseURL: process.env.url, apiKey: "none" });
const tools = [{ type: "function", function: { name: "heat", parameters: { type: "object" } } }];
const seen = {};
for (const model of ["follow", "alternate"]) {
  const stream = client.chat.completions.stream({ model, messages: [{ role: "user", content: "hi" }], tools });
  const done = [];
  stream.on("tool_calls.function.arguments.done", (event) => done.push([event.index, event.arguments]));
  const calls = (await stream.finalChatCompletion()).choices[0].message.tool_calls;
  seen[model] = [done, calls.map((call) => call.function.arguments)];
}
console.log(JSON.stringify(seen));
JS
node read.mjs > javascript.json
python - <<'PY'
import json
import os

import openai

client = openai.OpenAI(base_url=os.environ["url"], api_key="none")
tools = [{"type": "function", "function": {"name": "heat", "parameters": {"type": "object"}}}]
python = {}
for model in ("follow", "alternate"):
    with client.chat.completions.stream(model=model, messages=[{"role": "user", "content": "hi"}], tools=tools) as stream:
        done = [[event.index, event.arguments] for event in stream if event.type == "tool_calls.function.arguments.done"]
        calls = stream.get_final_completion().choices[0].message.tool_calls
        python[model] = [done, [call.function.arguments for call in calls]]
javascript = json.load(open("javascript.json"))
for name, seen in ((f"Python {openai.__version__}", python), ("JavaScript 7.59.0", javascript)):
    for model, (done, calls) in seen.items():
        print(f"{name}, calls {model}: done {done}, at the end {calls}")
        assert calls == ['{"room":"a"}', '{"room":"b"}'], "changed"
        assert (done == [[0, '{"room":"a"}'], [1, '{"room":"b"}']]) is (model == "follow"), "changed"
assert python["alternate"][0] == [[0, ""], [1, ""]], "changed"
assert [0, '{"room":'] in javascript["alternate"][0], "changed"
PY
