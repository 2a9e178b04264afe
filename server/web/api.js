// Requests of the page to the server.

import { local } from "/web/dom.js";

export class Refusal extends Error {
  constructor(message, status, code, retryAfter) {
    super(message);
    Object.assign(this, { status, code, retryAfter });
  }
}

export const key = {
  get: () => local.get("api-key"),
  set: (value) => local.set("api-key", value.trim()),
};

export function headers() {
  return key.get() ? { Authorization: `Bearer ${key.get()}` } : {};
}

async function get(path) {
  const response = await fetch(path, { headers: headers() });
  if (!response.ok) throw await refusal(response);
  return response.json();
}

function post(path, body, signal, more = {}) {
  const sent = { "Content-Type": "application/json", ...more, ...headers() };
  return fetch(path, { method: "POST", headers: sent, body: JSON.stringify(body), signal });
}

async function refusal(response) {
  let error = {};
  try { error = (await response.json()).error ?? {}; } catch { /* no JSON: a proxy's page */ }
  const message = error.message ?? `the server answers ${response.status}`;
  return new Refusal(message, response.status, error.code, Number(response.headers.get("Retry-After")) || 0);
}

export const health = async () => (await fetch("/health")).json();
const loads = async () => { try { return (await health()).status === "loading"; } catch { return false; } };
// A link to /lend, and its QR code, for a server that is known here by this origin.
export const lendLink = (origin, withKey) => get(`/lend/link?${new URLSearchParams({ origin, key: withKey })}`);
export const model = async () => (await get("/v1/models")).data[0];

// Let the server evaluate an unfinished message, so that the reply comes sooner.
export async function precompute(body, signal) {
  try { await post("/v1/precompute", body, signal); } catch { /* it is only sooner */ }
}

const TRIES = 5; // maximum tries of a request that a busy server postpones

function pause(seconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, seconds * 1000);
    signal.addEventListener("abort", () => { clearTimeout(timer); reject(signal.reason); }, { once: true });
  });
}

// Return the answer to a request. If the server is busy and says for how long, try again: up to TRIES times, and
// for as long as its model loads. Each time call putOff(refusal).
async function accepted(path, body, signal, putOff, more) {
  for (let tries = 1; ; tries++) {
    const response = await post(path, body, signal, more);
    if (response.ok) return response;
    const refused = await refusal(response);
    if (![429, 503].includes(refused.status) || !refused.retryAfter) throw refused;
    if (refused.status === 503 && (await loads())) tries = 0;
    if (tries === TRIES) throw refused;
    putOff(refused);
    await pause(refused.retryAfter, signal);
  }
}

// Yield the chunks of a streamed reply. The stream can be read again by its name, if it has one.
// Throws Refusal, TypeError when the server is gone, AbortError.
export async function* reply(body, signal, putOff = () => {}, stream = "") {
  const asked = { ...body, stream: true, return_sources: true, stream_options: { include_usage: true } };
  const named = stream ? { "X-Conversation-Id": stream } : {};
  yield* chunks(await accepted("/v1/chat/completions", asked, signal, putOff, named));
}

// Yield the chunks of a stream from its beginning, and later ones as they come. Throws as reply() does, and
// Refusal 404 if the stream is gone.
export async function* replyAgain(stream, signal) {
  const found = await post("/v1/streams/lookup", { conversation_ids: [stream] }, signal);
  if (!found.ok) throw await refusal(found);
  if (!(await found.json()).length) throw new Refusal("the server no longer has this reply", 404);
  const response = await fetch(`/v1/stream?conv_id=${stream}`, { headers: headers(), signal });
  if (!response.ok) throw await refusal(response);
  yield* chunks(response);
}

const RESUMES = 3; // maximum reconnections of a stream, one second apart: a phone that changes networks needs two

// Yield the chunks of a reply or, with `again`, of a stream that has begun. If the connection is lost, yield null and
// read the stream again from its beginning.
export async function* held(body, signal, putOff, stream, again) {
  let [lost, some] = [null, false];
  for (let tries = 0; ; tries++) {
    try {
      yield null;
      for await (const chunk of again ? replyAgain(stream, signal) : reply(body, signal, putOff, stream)) {
        some = true;
        yield chunk;
      }
      return;
    } catch (error) {
      if (lost && error.status === 404) throw some ? new DOMException("stopped elsewhere", "AbortError") : lost;
      if (!(error instanceof TypeError) || tries === RESUMES) throw error;
      lost = error;
    }
    again = true;
    if (some) await pause(1, signal);
  }
}

// Make the server end and delete this stream.
export async function forget(stream) {
  try { await fetch(`/v1/stream?conv_id=${stream}`, { method: "DELETE", headers: headers(), keepalive: true }); } catch { /* it is gone */ }
}

async function* chunks(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new TypeError("the connection ended in the middle of the reply");
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line === "data: [DONE]") return;
      if (!line.startsWith("data: ")) continue;
      const chunk = JSON.parse(line.slice(6));
      if (chunk.error) throw new Refusal(chunk.error.message, 0, chunk.error.code);
      yield chunk;
    }
  }
}

// Return the request fields that follow from a conversation's settings.
export function fields({ temperature, max_tokens, seed, thinking }) {
  const found = {};
  if (temperature !== "") found.temperature = Number(temperature);
  if (max_tokens !== "") found.max_tokens = Number(max_tokens);
  if (seed !== "") found.seed = Number(seed);
  if (thinking !== "") found.chat_template_kwargs = { enable_thinking: thinking === "on" };
  return found;
}
