#!/usr/bin/env bash
# multi-llm-ts 5.1.1, a client of many providers that runs tools by itself, with an OpenAI-compatible server.
# Expected: each call runs once, with its own arguments. `index` tells to which call a piece belongs, so the pieces of two calls may
#           alternate.
# Seen:     `index` is not looked at: the first tool runs at once with no arguments at all, `{}`, and the pieces of both calls are
#           joined to one text, which is no JSON, so the second fails. Where one call follows the other both run rightly.
source "$(dirname "$0")/begin.sh"
from_npm multi-llm-ts@5.1.1
serve "$findings/two-calls.json"
cat > chat.mjs <<'JS'
import { Message, OpenAI, Plugin } from "multi-llm-ts";
console.log = () => {};
class Heat extends Plugin {
  ran = [];
  isEnabled = () => true;
  getName = () => "heat";
  getDescription = () => "Heat a room.";
  getPreparationDescription = () => "";
  getRunningDescription = () => "";
  getCompletedDescription = () => "";
  getParameters = () => [{ name: "room", type: "string", description: "a room", required: true }];
  async execute(_, given) {
    this.ran.push(given);
    return "ok";
  }
}
const seen = {};
for (const name of ["follow", "alternate"]) {
  const engine = new OpenAI({ baseURL: process.env.url, apiKey: "none" });
  const heat = new Heat();
  engine.addPlugin(heat);
  const model = engine.buildModel(name);
  model.capabilities = { tools: true, vision: false, reasoning: false, caching: false };
  let error = "none";
  try {
    for await (const _ of engine.generate(model, [new Message("user", "hi")]));
  } catch (raised) {
    error = raised.message;
  }
  seen[name] = [heat.ran, error];
  console.info(`multi-llm-ts 5.1.1, calls ${name}: ran with ${JSON.stringify(heat.ran)}, error: ${error}`);
}
if (JSON.stringify(seen.follow) !== '[[{"room":"a"},{"room":"b"}],"none"]') throw new Error(JSON.stringify(seen.follow));
if (JSON.stringify(seen.alternate[0]) !== "[{}]" || !seen.alternate[1].includes("invalid JSON")) throw new Error("changed");
JS
node chat.mjs
