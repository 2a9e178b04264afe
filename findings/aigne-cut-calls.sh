#!/usr/bin/env bash
# @aigne/openai 0.16.16 with @aigne/core 1.72.0 (AIGNE), a framework for agents, with an OpenAI-compatible server.
# Expected: arguments of a call that the token limit cut (`finish_reason: length`) are no JSON, so no tool runs with
#           them, and who asks can tell that the reply is cut. Thoughts (`reasoning_content`, as llama-server, vLLM and
#           DeepSeek send them) are the reply's `thoughts`, as those named `reasoning` are. A tool gets what the model
#           wrote.
# Seen:     the half arguments are completed and the tool runs: of `{"to":"ann","cents":150000}` cut behind the third
#           digit, 150 are paid; of a path its beginning is removed. `finish_reason` is not read, so that a cut answer
#           looks like a whole one. `reasoning_content` is lost. A tool gets the agent's input as well: one that may
#           take a `note` and that the model called without one notes the user's question, if the agent's is so named.
source "$(dirname "$0")/begin.sh"
from_npm @aigne/openai@0.16.16 @aigne/core@1.72.0 zod@3.25.76
cat > make.mjs <<'JS'
import { writeFileSync } from "node:fs";
const call = (name, text) => (
  { tool_calls: [{ index: 0, id: "x", type: "function", function: { name, arguments: text } }] });
writeFileSync("replies.json", JSON.stringify({
  "whole call": [[call("pay", '{"to":"ann","cents":150000}'), null], [{}, "tool_calls"]],
  "cut number": [[call("pay", '{"to":"ann","cents":150'), null], [{}, "length"]],
  "cut path": [[call("remove", '{"path":"/home/ann'), null], [{}, "length"]],
  "cut answer": [[{ content: "Do not" }, null], [{}, "length"]],
  reasoning: [[{ reasoning: "Hm." }, null], [{ content: "Yes." }, null], [{}, "stop"]],
  reasoning_content: [[{ reasoning_content: "Hm." }, null], [{ content: "Yes." }, null], [{}, "stop"]],
}));
JS
node make.mjs
serve replies.json
cat > ask.mjs <<'JS'
import { strict as assert } from "node:assert";
import { AIAgent, AIGNE, FunctionAgent } from "@aigne/core";
import { OpenAIChatModel } from "@aigne/openai";
import { z } from "zod";
const ran = [];
const tool = (name, inputSchema) => FunctionAgent.from({
  name, description: name, inputSchema, process: (given) => (ran.push([name, given]), { done: true }),
});
const skills = [
  tool("pay", z.object({ to: z.string(), cents: z.number() })),
  tool("remove", z.object({ path: z.string(), note: z.string().optional() })),
];
const seen = {};
for (const name of ["whole call", "cut number", "cut path", "cut answer", "reasoning", "reasoning_content"]) {
  ran.length = 0;
  const model = new OpenAIChatModel({ baseURL: process.env.url, apiKey: "none", model: name });
  if (name.includes("call") || name === "cut number" || name === "cut path") {
    const agent = AIAgent.from({ model, skills, inputKey: "note", outputKey: "answer" });
    await new AIGNE({ model }).invoke(agent, { note: "hi" });
    seen[name] = JSON.stringify(ran);
  } else {
    const { text, thoughts, ...more } = await model.invoke({ messages: [{ role: "user", content: "hi" }] });
    seen[name] = JSON.stringify([text, thoughts ?? null, Object.keys(more).sort()]);
  }
  console.log(`@aigne/openai 0.16.16, ${name}: ${seen[name]}`);
}
assert.equal(seen["whole call"], '[["pay",{"to":"ann","cents":150000,"note":"hi"}]]', "changed");
assert.equal(seen["cut number"], '[["pay",{"to":"ann","cents":150,"note":"hi"}]]', "changed");
assert.equal(seen["cut path"], '[["remove",{"path":"/home/ann","note":"hi"}]]', "changed");
assert.equal(seen["cut answer"], '["Do not",null,["model","modelOptions"]]', "changed");
assert.equal(seen.reasoning, '["Yes.","Hm.",["model","modelOptions"]]');
assert.equal(seen.reasoning_content, '["Yes.",null,["model","modelOptions"]]', "changed");
JS
node ask.mjs
