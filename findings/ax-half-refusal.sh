#!/usr/bin/env bash
# @ax-llm/ax 24.0.21, a framework of typed prompts for TypeScript, streaming from an OpenAI-compatible server.
# Expected: a refusal that comes in pieces, as text does, is told whole; an error that the server sends once a reply has begun
#           (`data: {"error": ...}`, as llama-server and vLLM do) is raised with what the server said.
# Seen:     the first piece of a refusal is thrown as all of it, so `I can` + `not do that` is a refusal that says `I can`. The
#           server's error becomes a TypeError (`Cannot read properties of undefined`); what it said is lost. Text is read rightly.
source "$(dirname "$0")/begin.sh"
from_npm @ax-llm/ax@24.0.21
cat > replies.json <<'JSON'
{
  "text": [[{"role": "assistant", "content": "hel"}, null], [{"content": "lo"}, null], [{}, "stop"]],
  "refusal": [[{"role": "assistant", "refusal": "I can"}, null], [{"refusal": "not do that"}, null], [{}, "stop"]],
  "error": [[{"role": "assistant", "content": "hel"}, null], {"error": {"message": "out of memory", "type": "server_error", "code": 500}}]
}
JSON
serve replies.json
cat > read.mjs <<'JS'
import { ai, AxAIRefusalError } from "@ax-llm/ax";
const seen = {};
for (const model of ["text", "refusal", "error"]) {
  const llm = ai({ name: "openai", apiKey: "none", apiURL: process.env.url, config: { model } });
  let text = "";
  let thrown = "nothing";
  try {
    const stream = await llm.chat({ chatPrompt: [{ role: "user", content: "hi" }] }, { stream: true });
    for await (const part of stream) text += part.results[0]?.content ?? "";
  } catch (error) {
    thrown = error instanceof AxAIRefusalError ? `refusal: ${error.refusalMessage}` : `${error.name}: ${error.message}`;
  }
  seen[model] = [text, thrown];
  console.log(`ax 24.0.21, ${model}: read ${JSON.stringify(text)}, threw ${thrown}`);
}
if (seen.text.join() !== "hello,nothing") throw new Error(JSON.stringify(seen));
if (seen.refusal[1] !== "refusal: I can") throw new Error("changed");
if (!seen.error[1].startsWith("TypeError") || seen.error[1].includes("memory")) throw new Error("changed");
JS
node read.mjs
