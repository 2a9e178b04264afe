#!/usr/bin/env bash
# fetch-event-stream 0.1.6, event-source-plus 0.1.15 and extended-eventsource 2.1.0 ("fully compliant with the WHATWG Server-Sent
# Events specification"), clients of event streams, with a reply that sse-starlette 3.7.0 sends token by token.
# Expected: by the specification one blank after the colon goes and all else of the line is data; the `data` lines of an event are joined
#           by line feeds; an event without `data` (a comment, `retry`) is no message. eventsource 5.1.5 reads the reply so.
# Seen:     fetch-event-stream drops the blanks and line feeds that a token begins with, so `return n` arrives as `returnn`; an event with
#           `retry` alone is a message without data. event-source-plus drops blanks at both ends of a line, and of a token with line
#           feeds all but the last line: `(n):` is lost. extended-eventsource drops line feeds at the start of a token. It makes
#           a message of a comment and of `retry`, and ends an event wherever CR and LF come in two pieces, which makes more.
source "$(dirname "$0")/begin.sh"
from_pypi sse-starlette==3.7.0
from_npm fetch-event-stream@0.1.6 event-source-plus@0.1.15 extended-eventsource@2.1.0 eventsource@5.1.5
python - > events.json <<'PY'
import json

from sse_starlette import ServerSentEvent

tokens = ["def f", "(n):\n", "    return", " n", "\n\n", "f(1)"]
events = [ServerSentEvent(retry=1000), ServerSentEvent(comment="ping"), *map(ServerSentEvent, tokens), ServerSentEvent(event="end", data="-")]
print(json.dumps({"tokens": tokens, "sent": [event.encode().decode() for event in events]}))
PY
cat > read.mjs <<'JS'
import assert from "node:assert/strict";
import http from "node:http";
import { readFileSync } from "node:fs";
import { EventSource } from "eventsource";
import { EventSource as Extended } from "extended-eventsource";
import { EventSourcePlus } from "event-source-plus";
import { events } from "fetch-event-stream";
const { tokens, sent } = JSON.parse(readFileSync("events.json", "utf8"));
const pieces = { whole: sent, split: sent.join("").split(/(?<=\r)/) };
console.log("sent:", tokens, JSON.stringify(sent));
const server = http.createServer(async (request, response) => {
  response.writeHead(200, { "content-type": "text/event-stream" });
  for (const piece of pieces[request.url.slice(1)]) {
    response.write(piece);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  response.end();
});
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
const listen = (Source) => (url) => new Promise((resolve) => {
  const source = new Source(url), seen = [];
  source.onmessage = (event) => seen.push(event.data);
  source.addEventListener("end", () => (source.close(), resolve(seen)));
});
const readers = {
  eventsource: listen(EventSource),
  "extended-eventsource": listen(Extended),
  "event-source-plus": (url) => new Promise((resolve) => {
    const seen = [], onMessage = ({ event, data }) => (event === "end" ? (listening.abort(), resolve(seen)) : seen.push(data));
    const listening = new EventSourcePlus(url).listen({ onMessage });
  }),
  "fetch-event-stream": async (url) => {
    const seen = [];
    for await (const event of events(await fetch(url))) if (event.event !== "end") seen.push(event.data);
    return seen;
  },
};
const lost = ["def f", "(n):\n", "return", "n", "", "f(1)"];
for (const [name, way, expected] of [
  ["eventsource", "whole", tokens],
  ["eventsource", "split", tokens],
  ["fetch-event-stream", "whole", [undefined, ...lost]],
  ["event-source-plus", "whole", lost.with(1, "")],
  ["extended-eventsource", "whole", ["", "", ...tokens.with(4, "")]],
  ["extended-eventsource", "split", ["", "", ...tokens.with(4, "").with(1, "(n):")]],
]) {
  const seen = await readers[name](`http://127.0.0.1:${server.address().port}/${way}`);
  console.log(`${name}, ${way}: ${seen.length} messages`, JSON.stringify(seen.join("")));
  if (way === "whole") assert.deepEqual(seen, expected, "changed");
  else assert.equal(seen.join(""), expected.join(""), "changed");
  assert.equal(seen.length > expected.length, name.startsWith("extended") && way === "split", "changed");
}
process.exit();
JS
node read.mjs
