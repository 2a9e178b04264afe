#!/usr/bin/env bash
# @ai-sdk-tool/parser 4.1.26, middleware that reads tool calls from the text of models in the AI SDK.
# Expected: what a Qwen3-Coder model writes between <parameter=text> and </parameter> is the argument as it stands, without
#           the line breaks next to the tags: Qwen's own reader takes it so.
# Seen:     white space at both ends goes (a file's indentation and its last line break), and XML entities are decoded, so
#           that a model that writes `&lt;b&gt;` into an HTML file gets `<b>` written. Whole and streamed replies alike.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
npm install --silent --no-audit --no-fund @ai-sdk-tool/parser@4.1.26 >/dev/null
cat > read.mjs <<'JS'
import { qwen3CoderProtocol } from "@ai-sdk-tool/parser";
const tools = [
  { type: "function", name: "write", inputSchema: { type: "object", properties: { text: { type: "string" } } } },
];
const written = ["    return x\n", "&lt;b&gt; &amp;", "plain"];
const seen = written.map((argument) => {
  const text = `<tool_call>\n<function=write>\n<parameter=text>\n${argument}\n</parameter>\n</function>\n</tool_call>`;
  const [call] = qwen3CoderProtocol().parseGeneratedText({ text, tools });
  const read = JSON.parse(call.input).text;
  console.log(`@ai-sdk-tool/parser 4.1.26: the model wrote ${JSON.stringify(argument)}, read ${JSON.stringify(read)}`);
  return read;
});
if (JSON.stringify(seen) !== JSON.stringify(["return x", "<b> &", "plain"])) throw new Error("changed");
JS
node read.mjs
