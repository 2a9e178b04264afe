#!/usr/bin/env bash
# @arizeai/openinference-instrumentation-openai 4.2.7, which records for Phoenix what a client of OpenAI's SDK for JavaScript gets.
# Expected: a streamed reply that calls two tools is recorded with both calls. `index` tells to which call a piece belongs. The server
#           sends `usage` since the caller asks for it; so it is recorded, as it is where nothing is streamed.
# Seen:     where one call follows the other both are recorded as one, with the id `xy`, the name `heatheat` and arguments that are no
#           JSON. Where pieces alternate, the first call has the arguments of both and the second has none. It joins by the place in
#           the chunk. Usage is not recorded. The caller gets all of it.
source "$(dirname "$0")/begin.sh"
from_npm @arizeai/openinference-instrumentation-openai@4.2.7 openai@6.49.0 @opentelemetry/sdk-trace-node@2.12.1
python3 - "$findings/two-calls.json" <<'PY'
import json
import sys

usage = {"prompt_tokens": 7, "completion_tokens": 9, "total_tokens": 16}
chunk = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [], "usage": usage}
json.dump({name: [*reply, chunk] for name, reply in json.load(open(sys.argv[1])).items()}, open("replies.json", "w"))
PY
serve replies.json
cat > ask.cjs <<'JS'
const { InMemorySpanExporter, NodeTracerProvider, SimpleSpanProcessor } = require("@opentelemetry/sdk-trace-node");
const { OpenAIInstrumentation } = require("@arizeai/openinference-instrumentation-openai");
const OpenAI = require("openai");
const spans = new InMemorySpanExporter();
const tracerProvider = new NodeTracerProvider({ spanProcessors: [new SimpleSpanProcessor(spans)] });
new OpenAIInstrumentation({ tracerProvider }).manuallyInstrument(OpenAI);

async function ask(model) {
  spans.reset();
  const read = [];
  const client = new OpenAI({ baseURL: process.env.url, apiKey: "none" });
  const request = { model, messages: [{ role: "user", content: "hi" }], stream: true, stream_options: { include_usage: true } };
  for await (const chunk of await client.chat.completions.create(request)) {
    for (const { index, id, function: { name, arguments: part } } of chunk.choices[0]?.delta.tool_calls ?? [])
      if (id) read[index] = [id, name, part];
      else read[index][2] += part;
    if (chunk.usage) read.push(chunk.usage.completion_tokens);
  }
  while (!spans.getFinishedSpans().length) await new Promise((done) => setTimeout(done, 50));
  const { attributes } = spans.getFinishedSpans()[0];
  const kept = Object.keys(attributes).filter((key) => /tool_call\.|token_count/.test(key));
  return [read, kept.map((key) => attributes[key])];
}

(async () => {
  for (const [model, expected] of [
    ["follow", ["xy", "heatheat", '{"room":"a"}{"room":"b"}']],
    ["alternate", ["x", "heat", '{"room":{"room":"a"}"b"}', "y", "heat", ""]],
  ]) {
    const [read, kept] = await ask(model);
    console.log(`4.2.7, ${model}: read ${JSON.stringify(read)}, recorded ${JSON.stringify(kept)}`);
    if (read.join() !== 'x,heat,{"room":"a"},y,heat,{"room":"b"},9') throw new Error(read.join());
    if (kept.join() !== expected.join()) throw new Error("changed");
  }
})();
JS
node ask.cjs
