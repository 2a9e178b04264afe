// Drafts for the server that this page comes from, while the page is visible.

import { Wllama } from "/lend/page/vendor/wllama.js";
import { modelFile, Refused } from "/lend/page/model_file.js";
import { TextModel } from "/lend/page/text_model.js";
import { health, key } from "/web/api.js";
import { $, element, local } from "/web/dom.js";

const WASM = { "single-thread/wllama.wasm": "/lend/page/vendor/wllama-single.wasm", "multi-thread/wllama.wasm": "/lend/page/vendor/wllama-multi.wasm" };
const MAX_CONTEXT = 4096; // tokens: a tablet's memory for the KV cache
const MAX_THREADS = 4; // more wait for each other longer than they save with small models
const AGAIN_S = 3; // seconds until a lost server is looked for again
const SHOWN = 160; // tokens
const QUIET = { debug() {}, log() {}, warn() {}, error: console.error };

let wanted = true; // by who looks at the page
let loaded = null; // { name, engine, pieces, n_ctx }
let socket = null;
let drafter = null; // its id in /health
const guesses = []; // { at, token, right }, the latest ones; right: undefined until it is known, null if it never will be
let nGuessed = 0; // since the last look
let pace = null; // of the server by its pace without guesses, when it last had something to do
let wake = null;

// A link may bring a key, behind #. The address bar, which is shown and kept, loses it.
const brought = new URLSearchParams(location.hash.slice(1)).get("key");
if (brought) {
  key.set(brought);
  history.replaceState(null, "", location.pathname);
}

document.documentElement.dataset.theme = local.get("theme");

function say(line) {
  if ($("state").textContent !== line) $("state").textContent = line;
}

// A word for a device, by its browser's. Safari on an iPad calls itself a Macintosh.
export function device({ userAgent, maxTouchPoints = 0 }) {
  if (/Macintosh/.test(userAgent) && maxTouchPoints > 1) return "iPad";
  return ["iPhone", "iPad", "Android", "Windows", "Macintosh", "CrOS", "Linux"].find((name) => userAgent.includes(name)) ?? "browser";
}

// One thread where threads cannot share memory, or there are no cores to spare.
function threads() {
  return self.crossOriginIsolated ? Math.max(1, Math.min(MAX_THREADS, Math.floor(navigator.hardwareConcurrency / 2))) : 1;
}

async function load() {
  say("loading the draft model");
  $("progress").hidden = false;
  const { name, blob } = await modelFile((share) => ($("progress").value = share));
  $("progress").hidden = true;
  say("starting the draft model");
  const engine = new Wllama(WASM, { suppressNativeLog: true, logger: QUIET });
  await engine.loadModel([blob], { n_ctx: MAX_CONTEXT, n_batch: 64, n_threads: threads() });
  const { n_ctx, n_vocab } = engine.getLoadedContextInfo();
  const pieces = (await engine.getVocab()).slice(-n_vocab); // wllama 2.3.7 puts as many empty ones before them
  return { name, engine, pieces, n_ctx, model: new TextModel(engine, tell, guessed) };
}

function tell(message) {
  if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message));
}

function guessed(guess) {
  guesses.push(guess);
  guesses.splice(0, guesses.length - SHOWN);
  nGuessed += 1;
  show();
}

// What a message says of earlier guesses: those that stay, before tokens that were not guessed, are accepted.
function judge({ keep, add, stop }) {
  const open = guesses.filter(({ right }) => right === undefined);
  if (stop !== undefined) for (const guess of open) guess.right = null;
  else if (add.length) for (const guess of open) guess.right = guess.at < keep;
}

let planned = false;
function show() {
  if (planned) return;
  planned = true;
  requestAnimationFrame(() => {
    planned = false;
    const decoder = new TextDecoder();
    const words = guesses.map(({ token, right }) => element("span", right == null ? {} : { class: right ? "right" : "wrong" }, decoder.decode(loaded.pieces[token] ?? new Uint8Array())));
    $("guesses").replaceChildren(...words);
  });
}

function connect() {
  const coded = btoa(String.fromCharCode(...new TextEncoder().encode(key.get()))).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  const protocols = key.get() ? ["duo-lend", `duo-key.${coded}`] : ["duo-lend"];
  const own = (socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/lend/socket?name=${device(navigator)}`, protocols));
  let opened = false;
  own.onopen = () => {
    opened = true;
    say("joining");
    tell({ n_ctx: loaded.n_ctx });
  };
  own.onmessage = ({ data }) => {
    const message = JSON.parse(data);
    if (message.drafter) {
      drafter = message.drafter;
      say("drafting");
      return;
    }
    judge(message);
    loaded.model.take(message);
  };
  own.onclose = ({ reason }) => {
    if (socket !== own) return;
    socket = drafter = null;
    loaded.model.take({ keep: 0, add: [] });
    if (wanted && !document.hidden) {
      say(reason || (opened ? "the server is gone" : "the server does not let this page draft"));
      setTimeout(follow, AGAIN_S * 1000);
    }
  };
}

function leave(line) {
  const own = socket;
  socket = drafter = null;
  own?.close();
  loaded?.model.take({ keep: 0, add: [] });
  wake?.release();
  wake = null;
  say(line);
}

// Draft, or leave, as who looks wants it and as the page is visible.
async function follow() {
  $("switch").textContent = wanted ? "Stop" : "Draft";
  if (!wanted || document.hidden) return leave(wanted ? "this page is hidden, so it does not draft" : "stopped");
  try {
    loaded ??= await load();
  } catch (error) {
    say(error instanceof Refused ? error.message : error instanceof TypeError ? "the server does not answer" : `this browser cannot run the draft model: ${error.message}`);
    if (error instanceof TypeError) setTimeout(follow, AGAIN_S * 1000);
    $("asks").hidden = !error.wantsKey;
    return;
  }
  if (!wanted || document.hidden || socket) return;
  connect();
  try { wake = await navigator.wakeLock?.request("screen"); } catch { /* the battery is low */ }
}

function facts(rows) {
  $("facts").replaceChildren(...rows.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
}

// How fast the server is by how fast it would be without guesses: replies at once in the time of a step of as many rows.
export function gain({ gate, slots }) {
  const step = gate.step_ms[slots.busy];
  return slots.busy && step && gate.tokens_per_second ? (gate.tokens_per_second * step) / (1000 * slots.busy) : null;
}

async function look() {
  const made = nGuessed;
  nGuessed = 0;
  if (!loaded || document.hidden) return;
  const seen = await health().catch(() => null);
  const own = seen?.drafters.find(({ id }) => id === drafter);
  if (own) say(own.state === "refused" ? `refused: ${own.reason}` : own.rests ? `resting: ${own.rests}` : "drafting");
  const { drafted = 0, accepted = 0 } = own?.counts ?? {};
  pace = (seen && gain(seen)) ?? pace;
  facts([
    ["Model", loaded.name],
    ["Threads", `${loaded.engine.getNumThreads()}`],
    ["Guesses a second", `${made}`],
    ["Time of a guess", own?.guess_ms ? `${own.guess_ms.toFixed(1)} ms` : "–"],
    ["Guesses sent", `${drafted}`],
    ["Accepted", drafted ? `${accepted} (${Math.round((100 * accepted) / drafted)} %)` : "–"],
    ["Server's tokens a second", seen?.gate.tokens_per_second ? seen.gate.tokens_per_second.toFixed(0) : "–"],
    ["Server by its pace without guesses", pace ? `${pace.toFixed(2)} times` : "–"],
  ]);
}

$("switch").onclick = () => {
  wanted = !wanted;
  follow();
};
$("asks").onsubmit = (event) => {
  event.preventDefault();
  key.set($("key").value);
  $("asks").hidden = true;
  follow();
};
document.addEventListener("visibilitychange", follow);
addEventListener("pagehide", () => leave("left"));
addEventListener("pageshow", ({ persisted }) => persisted && follow());
setInterval(look, 1000);
follow();
