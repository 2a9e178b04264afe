#!/usr/bin/env bash
# @opentelemetry/instrumentation-openai 0.21.0, which records what a client of OpenAI's SDK for JavaScript gets.
# Expected: a streamed reply that calls two tools is recorded with both calls, as the caller gets them. A chunk may have pieces of several
#           calls, and `index` tells to which call a piece belongs.
# Seen:     only the first call of a chunk is looked at, so the second of two that begin in one chunk is lost without a word. `index` is
#           not looked at: pieces are appended to the call that began last, and the arguments of both are recorded as one text, which
#           is no JSON. Calls one after the other are right.
source "$(dirname "$0")/begin.sh"
from_npm @opentelemetry/instrumentation-openai@0.21.0 openai@6.49.0 @opentelemetry/instrumentation@0.223.0 @opentelemetry/sdk-logs@0.223.1
serve "$findings/two-calls.json"
cat > ask.cjs <<'JS'
const { registerInstrumentations } = require("@opentelemetry/instrumentation");
const { OpenAIInstrumentation } = require("@opentelemetry/instrumentation-openai");
const { InMemoryLogRecordExporter, LoggerProvider, SimpleLogRecordProcessor } = require("@opentelemetry/sdk-logs");
const logs = new InMemoryLogRecordExporter();
const loggerProvider = new LoggerProvider({ processors: [new SimpleLogRecordProcessor({ exporter: logs })] });
registerInstrumentations({ instrumentations: [new OpenAIInstrumentation({ captureMessageContent: true })], loggerProvider });
const { OpenAI } = require("openai");
const whole = ['x {"room":"a"}', 'y {"room":"b"}'];

async function ask(model) {
  logs.reset();
  const read = [];
  const client = new OpenAI({ baseURL: process.env.url, apiKey: "none" });
  for await (const chunk of await client.chat.completions.create({ model, messages: [{ role: "user", content: "hi" }], stream: true }))
    for (const { index, id, function: { arguments: part } } of chunk.choices[0].delta.tool_calls ?? [])
      read[index] = (read[index] ?? `${id} `) + part;
  if (read.join() !== whole.join()) throw new Error(read.join());
  const { message } = logs.getFinishedLogRecords().at(-1).body;
  return message.tool_calls.map((call) => `${call.id} ${call.function.arguments}`);
}

(async () => {
  for (const [model, expected] of [
    ["follow", whole],
    ["alternate", ['x {"room":{"room":"a"}"b"}']],
  ]) {
    const kept = await ask(model);
    console.log(`0.21.0, ${model}: read ${JSON.stringify(whole)}, recorded ${JSON.stringify(kept)}`);
    if (kept.join() !== expected.join()) throw new Error("changed");
  }
})();
JS
node ask.cjs
