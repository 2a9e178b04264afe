#!/usr/bin/env bash
# @xsai/stream-text 0.4.4, a small client of OpenAI-compatible servers.
# Expected: a stream whose lines end with CRLF is read as one with LF is, since the specification of server-sent events allows both
#           (sse-starlette 3.7.0, which Python servers use, sends CRLF). Put together, the `tool-call-delta` events are the arguments;
#           each tells its call, since two calls may alternate. The end is told once.
# Seen:     with CRLF the last line, `data: [DONE]`, is taken for JSON. `fullStream` ends with a SyntaxError and loses pieces that were
#           read before: `hel` of `hello` is all that comes. With LF the text is whole, but the end is told twice. The first piece of
#           a call's arguments is in no event, and the events of the others have no id, so that no one knows which call they
#           belong to.
source "$(dirname "$0")/begin.sh"
from_npm @xsai/stream-text@0.4.4
cat > read.mjs <<'JS'
import http from "node:http";
import { streamText } from "@xsai/stream-text";
const call = (index, id, args) => ({ index, ...(id && { id, type: "function" }), function: { ...(id && { name: "heat" }), arguments: args } });
const replies = {
  text: [[{ role: "assistant", content: "hel" }, null], [{ content: "lo" }, null], [{}, "stop"]],
  calls: [
    [{ role: "assistant", tool_calls: [call(0, "x", '{"room":'), call(1, "y", '{"room":')] }, null],
    [{ tool_calls: [call(0, "", '"a"}')] }, null], [{ tool_calls: [call(1, "", '"b"}')] }, null], [{}, "tool_calls"],
  ],
};
let send;
const server = http.createServer((request, response) => {
  const events = replies[send.name].map(([delta, finish_reason]) => JSON.stringify({ choices: [{ index: 0, delta, finish_reason }] }));
  response.writeHead(200, { "content-type": "text/event-stream" });
  response.end([...events, "[DONE]"].map((event) => `data: ${event}${send.end}${send.end}`).join(""));
});
await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
const baseURL = `http://127.0.0.1:${server.address().port}/v1/`;
const ignore = (promise) => promise.catch(() => {});
const tools = [{ type: "function", function: { name: "heat", parameters: {} }, execute: () => "ok" }];
async function read(name, end) {
  send = { name, end };
  const reply = streamText({ baseURL, apiKey: "none", model: "m", messages: [{ role: "user", content: "hi" }], tools });
  for (const key of ["messages", "steps", "usage", "totalUsage"]) ignore(reply[key]);
  for (const key of ["textStream", "reasoningTextStream"]) ignore(reply[key].pipeTo(new WritableStream()));
  const seen = { text: "", finish: 0, deltas: [], error: null };
  try {
    for await (const event of reply.fullStream) {
      if (event.type === "text-delta") seen.text += event.text;
      if (event.type === "finish") seen.finish++;
      if (event.type === "tool-call-delta") seen.deltas.push([event.toolCallId ?? null, event.argsTextDelta]);
    }
  } catch (error) {
    seen.error = error.name;
  }
  return JSON.stringify(seen);
}
const seen = [await read("text", "\n"), await read("text", "\r\n"), await read("calls", "\n")];
server.close();
["text, LF", "text, CRLF", "two calls, LF"].forEach((name, i) => console.log(`@xsai/stream-text 0.4.4, ${name}: ${seen[i]}`));
if (seen[0] !== '{"text":"hello","finish":2,"deltas":[],"error":null}') throw new Error("changed");
if (!seen[1].includes('"finish":0') || !seen[1].includes("SyntaxError") || seen[1].includes("hello")) throw new Error("changed");
if (!seen[2].includes(String.raw`"deltas":[[null,"\"a\"}"],[null,"\"b\"}"]]`)) throw new Error("changed");
JS
node read.mjs
