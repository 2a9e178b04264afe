#!/usr/bin/env bash
# genkit 1.42.0 with @genkit-ai/compat-oai 1.42.0, its plugin for OpenAI-compatible servers.
# Expected: a call has the arguments that the model wrote, whatever the reply's `finish_reason` is. OpenAI's own servers end with `stop`
#           where `tool_choice` names a function, as OpenAI's forum reports. What the model says or thinks before a call stays in
#           the conversation.
# Seen:     where the reason is `stop`, the arguments of the call become an empty text. A tool that takes an object fails (`must be
#           object`), one that takes a text runs with "". Text and thoughts before a call are not in the messages that are kept,
#           though they were in the stream; text in one chunk with a call is not even in the stream.
source "$(dirname "$0")/begin.sh"
from_npm --omit=optional genkit@1.42.0 @genkit-ai/compat-oai@1.42.0 @cfworker/json-schema@4.1.1
python3 - <<'PY'
import json


def call(name, arguments):
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"tool_calls": [{"index": 0, "id": "x", "type": "function", "function": function}]}


heat = call("heat", {"room": "a"})
replies = {
    "tool_calls": [[{"role": "assistant"}, None], [heat, None], [{}, "tool_calls"]],
    "stop": [[{"role": "assistant"}, None], [heat, None], [{}, "stop"]],
    "stop, text": [[{"role": "assistant"}, None], [call("say", "b"), None], [{}, "stop"]],
    "words before": [[{"role": "assistant", "reasoning_content": "I think"}, None], [{"content": "Wait."}, None], [heat, None], [{}, "tool_calls"]],
    "words beside": [[{"role": "assistant", "content": "Wait.", **heat}, None], [{}, "tool_calls"]],
}
json.dump(replies, open("replies.json", "w"))
PY
serve replies.json
cat > ask.mjs <<'JS'
import { openAICompatible } from "@genkit-ai/compat-oai";
import { genkit, z } from "genkit";
import { logger } from "genkit/logging";
logger.setLogLevel("error");
const ai = genkit({ plugins: [openAICompatible({ name: "own", apiKey: "none", baseURL: process.env.url })] });
let ran;
const run = async (given) => {
  ran.push(given);
  return "ok";
};
const heat = ai.defineTool({ name: "heat", description: "Heat.", inputSchema: z.object({ room: z.string() }) }, run);
const say = ai.defineTool({ name: "say", description: "Say.", inputSchema: z.string() }, run);
const seen = {};
for (const name of ["tool_calls", "stop", "stop, text", "words before", "words beside"]) {
  ran = [];
  let shown = "";
  let kept;
  try {
    const { stream, response } = ai.generateStream({ model: `own/${name}`, prompt: "hi", tools: [heat, say] });
    for await (const chunk of stream) shown += chunk.text;
    kept = (await response).messages[1].content.map((part) => Object.keys(part).find((key) => part[key])).join();
  } catch (error) {
    kept = error.message.split("\n").find((line) => line.includes("must be"));
  }
  seen[name] = JSON.stringify([ran, shown, kept]);
  console.log(`genkit 1.42.0, ${name}: ran with, showed and kept ${seen[name]}`);
}
const right = '[[{"room":"a"}],"done","toolRequest"]';
if (seen.tool_calls !== right) throw new Error(seen.tool_calls);
if (seen.stop !== '[[],"","- (root): must be object"]' || seen["stop, text"] !== '[[""],"done","toolRequest"]') throw new Error("changed");
if (seen["words before"] !== right.replace("done", "Wait.done") || seen["words beside"] !== right) throw new Error("changed");
process.exit(0);
JS
node ask.mjs 2>log
