// A conversation: a tree of messages; one path of it is shown and sent. Pure.
//
// {id, title, named, created, changed, settings, leaf, messages: {id: message}}
// message: {id, parent, role, text, pictures, thoughts, ended, error, runs, counts, timings, seed, model}
//   pictures: data URLs before a question's text; missing if there are none.
//   ended: how a reply ended: "stop", "length", "context", "stopped", "failed", "interrupted", "carried"; "": it runs.
//   stream: the server's name of a running reply, by which it is read again; base: the reply's text before the stream.
//   at: time of the last change. If two tabs have a message, the later change wins.
//   runs: guessed parts of the text, [{start, end, source}]; counts: guessed tokens by source; names: names of sources.

export const DEFAULTS = { system: "", temperature: "", max_tokens: "", seed: "", thinking: "" };

export function created(settings = DEFAULTS) {
  const now = Date.now();
  return { id: newId("c"), title: "", named: false, created: now, changed: now, settings: { ...DEFAULTS, ...settings }, leaf: null, messages: {} };
}

// Return an id that no other tab uses.
function newId(kind) {
  return `${kind}${Date.now().toString(36)}-${Math.random().toString(36).slice(2, 10)}`;
}

// Return an unguessable name by which a reply is read again.
export function newStream() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function add(conversation, parent, role, text = "", pictures = []) {
  const id = newId("m");
  const message = { id, parent, role, text, at: Date.now() };
  if (pictures.length) message.pictures = pictures;
  if (role === "assistant") Object.assign(message, { thoughts: "", ended: "", error: "", runs: [], counts: {}, timings: null });
  conversation.messages[id] = message;
  conversation.leaf = id;
  if (!conversation.named && !conversation.title && role === "user") conversation.title = titled(text);
  return message;
}

function titled(text) {
  const line = text.trim().split("\n")[0];
  return line.length > 60 ? `${line.slice(0, 57).trimEnd()}…` : line;
}

// Return the path from the first message to the leaf.
export function path(conversation, leaf = conversation.leaf) {
  const found = [];
  for (let at = conversation.messages[leaf]; at; at = conversation.messages[at.parent]) found.unshift(at);
  return found;
}

// Return all versions of a message in the order of their creation. Empty replies do not count as versions.
export function versions(conversation, message) {
  const { parent, role } = message;
  const all = Object.values(conversation.messages).filter((other) => other.parent === parent && other.role === role);
  return all.filter((other) => other === message || other.text || other.thoughts);
}

// Show another version, with the branch below it that was changed last.
export function turnTo(conversation, message) {
  let at = message;
  for (;;) {
    const below = Object.values(conversation.messages).filter(({ parent }) => parent === at.id);
    if (!below.length) break;
    at = below.at(-1);
  }
  conversation.leaf = at.id;
}

// Return a question's content for a request.
export function content(text, pictures = []) {
  const shown = pictures.map((url) => ({ type: "image_url", image_url: { url } }));
  if (!shown.length) return text;
  return text ? [...shown, { type: "text", text }] : shown;
}

// Return the messages to send up to this one: exactly those on the screen, without empty replies.
export function sent(conversation, leaf = conversation.leaf) {
  const { system } = conversation.settings;
  const messages = system ? [{ role: "system", content: system }] : [];
  for (const { role, text, thoughts, pictures } of path(conversation, leaf)) {
    if (role === "user") messages.push({ role, content: content(text, pictures) });
    else if (text || thoughts) messages.push(thoughts ? { role, content: text, reasoning_content: thoughts } : { role, content: text });
  }
  return messages;
}

// Merge two tabs' versions of a conversation: the messages of both, and the later of all other fields.
export function merged(mine, other) {
  const messages = { ...other.messages };
  for (const one of Object.values(mine.messages)) if (!(messages[one.id]?.at >= one.at)) messages[one.id] = one;
  const later = mine.changed >= other.changed ? mine : other;
  const { title, named } = other.named && !mine.named ? other : later;
  return { ...later, title, named, messages };
}

// Return a new conversation with the last question of this path and its reply, cut to `room` characters. Return null if
// not even the question fits.
export function carried(conversation, leaf, room) {
  const made = created(conversation.settings);
  const turns = path(conversation, leaf);
  const asked = turns.findLast(({ role }) => role === "user");
  const reply = turns.at(-1);
  if (!asked || asked.text.length >= room) return null;
  add(made, null, "user", asked.text, asked.pictures);
  if (reply !== asked && reply.text) {
    Object.assign(add(made, made.leaf, "assistant", reply.text.slice(asked.text.length - room)), { ended: "carried" });
  }
  return made;
}

// Return the conversations in a file, or an error in words. Unknown fields are ignored.
export function imported(text) {
  let data;
  try { data = JSON.parse(text); } catch { throw new Error("this is no JSON file"); }
  const list = Array.isArray(data?.conversations) ? data.conversations : [data];
  return list.map((one) => {
    if (typeof one?.messages !== "object") throw new Error("this file holds no conversations of duo");
    const made = created(Object.fromEntries(Object.keys(DEFAULTS).map((key) => [key, String(one.settings?.[key] ?? "")])));
    for (const [id, message] of Object.entries(one.messages)) {
      if (!["user", "assistant"].includes(message.role) || typeof message.text !== "string") throw new Error("a message in this file is not whole");
      const { parent = null, role, text: said, pictures = [], thoughts = "", ended = "stop", runs = [], counts = {}, timings = null } = message;
      const known = { id, parent, role, text: said, at: Number(message.at) || made.created };
      const shown = pictures.filter((url) => String(url).startsWith("data:image/"));
      if (role === "user" && shown.length) known.pictures = shown;
      const marks = runs.filter((run) => Number.isInteger(run?.start) && Number.isInteger(run?.end)).map(({ start, end, source }) => ({ start, end, source: String(source) }));
      if (role === "assistant") Object.assign(known, { thoughts: String(thoughts), ended: String(ended), error: "", runs: marks, counts, timings });
      made.messages[id] = known;
    }
    made.title = String(one.title ?? "");
    made.named = Boolean(one.named);
    made.leaf = one.messages[one.leaf] ? one.leaf : null;
    if (!made.leaf) turnTo(made, { id: null });
    return made;
  });
}
