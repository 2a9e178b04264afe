// The chat page. It shows one path of a conversation's tree, and sends the path that it shows.

import * as api from "/web/api.js";
import { DEFAULTS, add, carried, content, created, newStream, path, sent, turnTo } from "/web/conversation.js";
import { $, element, local, say } from "/web/dom.js";
import { lendDialog } from "/web/lend_link.js";
import { nameOf } from "/web/names.js";
import { Shots } from "/web/pictures.js";
import { Settings } from "/web/settings.js";
import { Sidebar } from "/web/sidebar.js";
import { Watch } from "/web/watch.js";
import * as store from "/web/store.js";
import { Turn, cost, guessed } from "/web/turns.js";

const PAUSE_MS = 250; // pause in typing before the message is evaluated. Half: more requests; twice: less is ready
const SAVE_MS = 1000; // time between two saves of a running reply: the maximum loss when the browser dies
const CARRIED = 1.5; // characters per token of the context that go into a new conversation: less than half, in English
const EXAMPLE = "Illustrate the difference between concurrency and parallelism in Python.";

const log = $("log");
const text = $("text");
let conversation = created();
let turns = new Map(); // the turns on the screen, by message
const running = new Map(); // by message, { controller, conversation }
const unkept = new Map(); // replies whose end the browser has not stored yet, with their conversation
const elsewhere = new Set(); // conversations in which another tab streams a reply
let leaving = false; // the page is being closed or loaded again
let typing = null; // AbortController of the evaluation of an unfinished message
let pause = 0;

const act = {
  again(message) {
    stop();
    conversation.leaf = message.parent;
    ask(conversation.messages[message.parent]);
  },
  edit(message, edited, pictures) {
    stop();
    ask(add(conversation, message.parent, "user", edited, pictures));
  },
  turn(message) {
    turnTo(conversation, message);
    side.put(conversation);
    show();
  },
  proceed(message) {
    conversation.leaf = message.id;
    stream(message);
  },
  move(message) {
    const next = carried(conversation, message.id, (watch.n_ctx ?? 0) * CARRIED);
    if (!next) return say("Not even the last message fits: shorten it with Edit.");
    const last = path(next).at(-1);
    side.put(next).then(() => open(next.id)).then(() => {
      if (last.role === "user") ask(conversation.messages[last.id]);
    });
  },
  replay,
};

const settings = new Settings({ conversation: () => conversation, changed: () => { system(); if (conversation.leaf) side.put(conversation); } });
const side = new Sidebar({ open, current: () => conversation });
lendDialog();
const watch = new Watch({ news: (line) => { say(line); for (const id of running.keys()) turns.get(id)?.tell(line); }, askForKey: () => settings.askForKey() });
const shots = new Shots({ sees: () => watch.sees, changed: soon });

// -- showing

async function open(id) {
  quiet();
  const found = id ? await store.load(id) : null;
  conversation = streamed(id)?.conversation ?? found ?? created(JSON.parse(local.get("settings") || "{}"));
  interrupted();
  const hash = found ? `#${conversation.id}` : location.pathname;
  if (location.hash.slice(1) !== (found ? conversation.id : "")) history.pushState(null, "", hash);
  text.value = local.get(draft());
  shots.open(draft());
  grow();
  show();
  side.show();
  text.focus();
}

// Store the questions and replies that pages were closed too soon to store.
async function recover() {
  for (const name of local.names("unstored-")) if (await side.put(JSON.parse(local.get(name)))) local.set(name, "");
}

function interrupted() {
  if (elsewhere.has(conversation.id)) return;
  for (const message of Object.values(conversation.messages)) {
    if (message.role !== "assistant" || message.ended || running.has(message)) continue;
    if (message.stream) stream(message, true);
    else message.ended = "interrupted";
  }
}

// Another tab changed the conversation on the screen. An unfinished edit stays, and is merged when it is sent.
async function refresh() {
  const found = await store.load(conversation.id);
  if (!found || found.id !== conversation.id || edited()) return;
  conversation = found;
  interrupted();
  follow(show);
}

// Return this conversation's replies that run in this tab.
function streamed(id) {
  return [...running.values()].find((one) => one.conversation.id === id);
}

function edited() {
  return log.querySelector(".turn textarea");
}

// Show the system prompt, which is sent before the first message, before that message.
function system() {
  $("system")?.remove();
  const said = conversation.settings.system;
  if (said) log.prepend(element("section", { id: "system", "aria-label": "System prompt" }, element("h2", {}, "System prompt"), said));
}

function show() {
  turns = new Map();
  log.replaceChildren();
  system();
  const shown = path(conversation);
  if (!shown.length) log.append(hello());
  for (const message of shown) place(message);
  document.title = conversation.title ? `${conversation.title} · duo` : "duo";
  busy();
  log.scrollTop = log.scrollHeight;
}

function place(message) {
  const turn = new Turn(conversation, message, act, () => watch.seen);
  turns.set(message, turn);
  log.append(turn.node);
  return turn;
}

function hello() {
  const example = element("button", { type: "button", class: "example", onclick: () => { text.value = EXAMPLE; submit(); } }, EXAMPLE);
  return element("p", { id: "hello" }, "Ask something, for example: ", example);
}

function follow(change) {
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  change();
  if (atEnd) log.scrollTop = log.scrollHeight;
}

function busy() {
  const here = Boolean(streamed(conversation.id));
  $("send").hidden = here || elsewhere.has(conversation.id);
  $("stop").hidden = !here;
  log.setAttribute("aria-busy", here); // a screen reader hears the reply when it is complete
}

// -- sending

async function submit() {
  await opened;
  await shots.reading;
  const said = text.value.trim();
  if (!(said || shots.list.length) || $("send").hidden) return;
  if (edited()) {
    say("Send or cancel the edited message first.");
    return edited().focus();
  }
  quiet();
  text.value = "";
  local.set(draft(), "");
  const pictures = shots.take();
  grow();
  $("hello")?.remove();
  const question = add(conversation, conversation.leaf, "user", said, pictures);
  shots.open(draft());
  ask(question);
}

async function ask(question) {
  const reply = add(conversation, question.id, "assistant");
  if (location.hash.slice(1) !== conversation.id) history.pushState(null, "", `#${conversation.id}`);
  show();
  side.put(conversation, true).then(() => side.show());
  await stream(reply);
}

function stop() {
  for (const [message, one] of running) {
    if (one.conversation !== conversation) continue;
    one.controller.abort();
    api.forget(message.stream);
  }
}

// Request a reply, or the rest of a reply that has begun. again: the reply runs already; read it from its beginning.
async function stream(message, again = false) {
  const [own, controller] = [conversation, new AbortController()];
  running.set(message, { controller, conversation: own });
  unkept.set(message, own);
  busy();
  if (!again) begin(own, message);
  const { base } = message;
  let [counts, tokens] = [{ ...base.counts }, []];
  const { text: said, thoughts } = base;
  const body = { messages: sent(own, said || thoughts ? message.id : message.parent), ...message.asked };
  let [frame, saved] = [null, Date.now()];
  const shown = () => {
    frame = null;
    message.runs = [...base.runs, ...guessed(message.text.slice(said.length), tokens).map((run) => ({ ...run, start: run.start + said.length, end: run.end + said.length }))];
    if (own === conversation) follow(() => turns.get(message)?.show());
  };
  try {
    let reason = "";
    const putOff = ({ status, message: why, retryAfter }) => {
      const state = status === 503 ? why[0].toUpperCase() + why.slice(1) : "The server is busy";
      turns.get(message)?.tell(`${state}. It is asked again in ${retryAfter} s.`);
    };
    let begins = false;
    for await (const chunk of api.held(body, controller.signal, putOff, message.stream, again)) {
      if (!chunk) {
        begins = true;
        continue;
      }
      if (begins) {
        Object.assign(message, { text: said, thoughts });
        [counts, tokens] = [{ ...base.counts }, []];
        begins = false;
      }
      const choice = chunk.choices[0] ?? {};
      message.text += choice.delta?.content ?? "";
      message.thoughts += choice.delta?.reasoning_content ?? "";
      message.timings = chunk.timings ?? message.timings;
      reason = choice.finish_reason ?? reason;
      for (const token of choice.sources ?? []) {
        tokens.push(token);
        if (token.source) counts[token.source] = (counts[token.source] ?? 0) + 1;
      }
      frame ??= requestAnimationFrame(shown);
      if (Date.now() - saved > SAVE_MS) {
        saved = message.at = Date.now();
        side.put(own, true);
      }
    }
    message.ended = ended(reason, message);
  } catch (error) {
    Object.assign(message, again && error.status === 404 ? { ended: "interrupted" } : failed(error));
  }
  cancelAnimationFrame(frame);
  if (leaving) return; // the page's end broke the stream, not the server
  message.counts = counts;
  message.names = { ...message.names };
  for (const source in counts) message.names[source] = nameOf(source, watch.seen);
  running.delete(message);
  const name = message.stream;
  delete message.stream;
  delete message.base;
  busy();
  if (message.ended === "interrupted") follow(() => turns.get(message)?.show());
  else shown();
  own.changed = message.at = Date.now();
  await side.put(own);
  if (message.ended !== "interrupted") api.forget(name);
  unkept.delete(message);
  side.show();
  if (own === conversation && document.activeElement === document.body) text.focus();
}

// Before a reply comes, note its request, the text that it continues, and the name of its stream.
function begin(own, message) {
  const asked = message.text || message.thoughts ? message.asked ?? {} : { ...api.fields(own.settings), seed: seed(own.settings) };
  const { text: said, thoughts, runs, counts } = message;
  Object.assign(message, { asked, ended: "", error: "", stream: newStream(), base: { text: said, thoughts, runs, counts: { ...counts } } });
  side.put(own, true);
}

function seed(wanted) {
  return wanted.seed === "" ? Math.floor(Math.random() * 2 ** 31) : Number(wanted.seed);
}

function ended(reason, { timings, asked }) {
  if (reason !== "length") return "stop";
  const used = timings ? timings.cache_n + timings.prompt_n + timings.predicted_n : 0;
  return !asked.max_tokens || used >= (watch.n_ctx ?? Infinity) ? "context" : "length";
}

function failed(error) {
  if (error.name === "AbortError") return { ended: "stopped" };
  if (error.status === 401) {
    settings.askForKey();
    return { ended: "failed", error: "this server wants an API key. Give one that it knows under Settings, then retry." };
  }
  if (/context/.test(error.code ?? "")) return { ended: "context", error: error.message };
  if (error.status === 429 && error.retryAfter) return { ended: "failed", error: `${error.message} (try again in ${error.retryAfter} s)` };
  if (error instanceof TypeError) return { ended: "failed", error: "the server is gone, or cannot be reached." };
  return { ended: "failed", error: error.message };
}

// Ask the question again without drafts, and show that reply beside the first.
async function replay(turn) {
  const { message } = turn;
  const tell = turn.beside();
  const [began, controller] = [performance.now(), new AbortController()];
  let [answer, timings] = ["", null];
  try {
    const body = { messages: sent(conversation, message.parent), ...message.asked, speculative: false };
    for await (const chunk of api.reply(body, controller.signal)) {
      answer += chunk.choices[0]?.delta?.content ?? "";
      timings = chunk.timings ?? timings;
      tell(answer, `${((performance.now() - began) / 1000).toFixed(1)} s`);
      if (!turn.node.isConnected || !turn.node.querySelector(".replay")) controller.abort();
    }
    tell(answer, timings ? cost(timings).split(" · ").slice(0, 2).join(" · ") : "", compared(message, answer, timings));
  } catch (error) {
    if (error.name !== "AbortError") tell(answer, failed(error).error);
  }
}

// Say in words what the drafts changed: the time, but not the text.
function compared({ text: said, timings: drafted }, answer, timings) {
  const same = answer === said ? "Word for word the same text" : "Not the same text";
  const [per, without] = [drafted?.predicted_per_second, timings?.predicted_per_second];
  return per && without ? `${same}, ${(per / without).toFixed(1)} times as fast with drafts` : same;
}

// -- typing

function precompute() {
  typing?.abort();
  const said = text.value.trim();
  if (!(said || shots.list.length) || $("send").hidden || edited() || local.get("ahead") === "off") return;
  typing = new AbortController();
  api.precompute({ messages: [...sent(conversation), { role: "user", content: content(said, shots.list) }], ...api.fields(conversation.settings) }, typing.signal);
}

// Evaluate the unfinished message after a pause in typing.
function soon() {
  clearTimeout(pause);
  pause = setTimeout(precompute, PAUSE_MS);
}

// Return the name under which the unfinished message is kept.
function draft() {
  return `draft-${Object.keys(conversation.messages).length ? conversation.id : "new"}`;
}

function quiet() {
  clearTimeout(pause);
  typing?.abort();
}

function grow() {
  text.style.height = "auto";
  text.style.height = `${Math.min(text.scrollHeight + 2, innerHeight * 0.4)}px`;
}

// Take pasted or dropped files. Office programs paste text together with a picture of it: use the text.
function take(event, { files } = event.clipboardData) {
  if (!files.length || event.clipboardData?.getData("text/plain")) return;
  event.preventDefault();
  shots.add([...files]);
}

$("form").addEventListener("submit", (event) => { event.preventDefault(); submit(); });
text.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit();
  else if (event.key === "ArrowUp" && !text.value) [...turns.values()].findLast(({ message }) => message.role === "user")?.edit();
  else return;
  event.preventDefault();
});
text.addEventListener("input", () => {
  local.set(draft(), text.value);
  grow();
  soon();
});
text.addEventListener("paste", (event) => take(event));
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => take(event, event.dataTransfer));
document.addEventListener("keydown", (event) => {
  const written = event.target.matches?.("input, textarea, select");
  const dialog = document.querySelector("dialog[open]");
  if (event.key === "Escape" && side.isOpen) side.drawer(false);
  else if (event.key === "Escape" && !dialog) stop();
  else if (event.key === "?" && !written && !event.ctrlKey && !dialog) settings.keys();
  else if (event.key === "O" && event.ctrlKey && event.shiftKey) side.leave(null);
  else if (event.key === "k" && event.ctrlKey) { side.drawer(true); $("search").focus(); }
  else return;
  event.preventDefault();
});
$("stop").addEventListener("click", stop);
addEventListener("popstate", () => open(location.hash.slice(1) || null));
addEventListener("pagehide", () => {
  leaving = true;
  for (const [reply, own] of unkept) {
    const messages = { [reply.parent]: own.messages[reply.parent], [reply.id]: { ...reply, at: Date.now() } };
    local.set(`unstored-${own.id}`, JSON.stringify({ ...own, messages })); // at once, as IndexedDB cannot
    store.tell(own.id);
  }
});

async function start() {
  const kept = await store.open(async ({ id, removed, running: goesOn }) => {
    if (goesOn) elsewhere.add(id);
    else elsewhere.delete(id);
    await recover();
    side.show();
    if (id === conversation.id && !streamed(id)) removed ? open(null) : refresh();
  });
  if (!kept) say("This browser keeps nothing: conversations last as long as this page.");
  if (!local.get("settings")) local.set("settings", JSON.stringify(DEFAULTS));
  watch.start();
  await recover();
  await open(location.hash.slice(1) || null);
}

const opened = start(); // messages sent earlier wait, because the conversation on the screen is not known yet
