// The chat page: one conversation, streamed from /v1/chat/completions. No dependencies, no build step.

const $ = (id) => document.getElementById(id);
const log = $("log");
let messages = [];
let running = null; // the AbortController of the reply being streamed
let typing = null; // that of the request that has what is typed evaluated beforehand
let pause = 0; // the timer that waits for a pause in typing
let known = false; // whether the server has said which model it serves
let refused = null; // the key that it did not take
const guessers = []; // drafters, lookups and so on, as they were first seen

function element(tag, className, text = "") {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.textContent = text;
  return node;
}

// Settings stay in this browser. Where storage is switched off they last as long as the page.
function stored(name) {
  try { return localStorage.getItem(name) ?? ""; } catch { return ""; }
}

function store(name, value) {
  try { localStorage.setItem(name, value); } catch { /* it stays in the field */ }
}

function headers() {
  const key = $("key").value.trim();
  return key ? { Authorization: `Bearer ${key}` } : {};
}

function post(path, body, signal) {
  const sent = { "Content-Type": "application/json", ...headers() };
  return fetch(path, { method: "POST", headers: sent, body: JSON.stringify(body), signal });
}

function askForKey() {
  refused = $("key").value.trim();
  $("settings").open = true;
  $("key").setAttribute("aria-invalid", "true");
  return "this server wants an API key: give one that it knows under Settings";
}

// Who guessed, in the order in which they were first seen: that is their colour.
function guesser(source) {
  if (!guessers.includes(source)) guessers.push(source);
  return `guess by${guessers.indexOf(source) % 4}`;
}

// Where in the text its guessed parts are. What is not content may stand before it in the tokens.
function guessed(text, tokens) {
  const whole = tokens.map((token) => token.text).join("");
  let at = [0, whole.trimStart().length - whole.length].find((start) => {
    const shown = whole.slice(-start);
    return shown.startsWith(text) || text.startsWith(shown);
  });
  const runs = [];
  if (at === undefined) return runs;
  for (const { text: piece, source } of tokens) {
    const last = runs.at(-1);
    if (source && last?.source === source && last.end === at) last.end += piece.length;
    else if (source) runs.push({ start: at, end: at + piece.length, source });
    at += piece.length;
  }
  return runs;
}

// Append a part of the text, which begins `at` there, with what was guessed of it marked.
function put(node, at, part, runs) {
  let from = 0;
  for (const { start, end, source } of runs) {
    const [first, last] = [Math.max(start - at, from), Math.min(end - at, part.length)];
    if (first >= last) continue;
    const mark = element("span", guesser(source), part.slice(first, last));
    mark.title = `guessed by ${source}`;
    node.append(part.slice(from, first), mark);
    from = last;
  }
  node.append(part.slice(from));
  return node;
}

// Markdown of the plainest kind: fenced code, `code` and **bold**. Everything else stays text.
function render(target, text, tokens = []) {
  const runs = guessed(text, tokens);
  target.replaceChildren();
  let at = 0;
  text.split(/(^```)/m).forEach((part, i) => {
    if (i % 4 === 2) {
      const [named] = part.match(/^[^\n]*\n?/);
      const pre = element("pre");
      pre.append(put(element("code"), at + named.length, part.slice(named.length), runs));
      target.append(pre);
    } else if (i % 4 === 0) paragraphs(target, at, part, runs);
    at += part.length;
  });
}

function paragraphs(target, at, part, runs) {
  for (const paragraph of part.split(/(\n{2,})/)) {
    let from = at + paragraph.length - paragraph.trimStart().length;
    at += paragraph.length;
    if (!paragraph.trim()) continue;
    const p = element("p");
    for (const piece of paragraph.trim().split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/)) {
      if (/^`.+`$/.test(piece)) p.append(put(element("code"), from + 1, piece.slice(1, -1), runs));
      else if (/^\*\*.+\*\*$/.test(piece)) p.append(put(element("strong"), from + 2, piece.slice(2, -2), runs));
      else put(p, from, piece, runs);
      from += piece.length;
    }
    target.append(p);
  }
}

function follow(change) {
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  change();
  if (atEnd) log.scrollTop = log.scrollHeight;
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
    }
  }
}

function cost(t) {
  const parts = [`${t.predicted_n} tokens`];
  if (t.predicted_per_second) parts.push(`${t.predicted_per_second.toFixed(0)} tokens/s`);
  parts.push(`${t.cache_n} of ${t.cache_n + t.prompt_n} prompt tokens reused`);
  if (t.draft_n) parts.push(`${t.draft_n_accepted} of ${t.draft_n} drafted tokens accepted`);
  return parts.join(" · ");
}

// How many tokens each guessed, in its colour.
function credits(tokens) {
  const counts = new Map();
  for (const { source } of tokens) if (source) counts.set(source, (counts.get(source) ?? 0) + 1);
  const shown = [...counts].map(([source, n]) => element("span", guesser(source), `${source} ${n}`));
  return shown.flatMap((chip, i) => [i ? ", " : " · guessed by ", chip]);
}

async function ask(text) {
  $("hello")?.remove();
  const conversation = messages; // "New conversation" may replace it before this reply has ended
  conversation.push({ role: "user", content: text });
  const reply = element("div", "turn assistant");
  follow(() => log.append(element("div", "turn user", text), reply));
  running = new AbortController();
  busy(true);
  const thoughts = element("details", "thoughts");
  const thought = element("p");
  thoughts.append(element("summary", "", "Thoughts"), thought);
  thoughts.open = true;
  let content = "";
  let timings = null;
  const tokens = []; // of the content, with who guessed them
  let frame = null; // in which the reply will be shown as it is by then
  const finish = () => {
    if (!frame) return;
    cancelAnimationFrame(frame);
    show();
  };
  const show = () => {
    frame = null;
    follow(() => {
      render(reply, content, tokens);
      if (thought.textContent) reply.prepend(thoughts);
    });
  };
  try {
    const response = await post("/v1/chat/completions", { messages: conversation, stream: true, return_sources: true }, running.signal);
    if (response.status === 401) throw new Error(askForKey());
    if (!response.ok) throw new Error((await response.json()).error.message);
    for await (const chunk of events(response.body)) {
      if (chunk.error) throw new Error(chunk.error.message);
      const delta = chunk.choices[0]?.delta ?? {};
      if (delta.content && !content) thoughts.open = false; // the answer begins
      content += delta.content ?? "";
      thought.textContent += delta.reasoning_content ?? "";
      timings = chunk.timings ?? timings;
      tokens.push(...(chunk.choices[0]?.sources ?? []));
      frame ??= requestAnimationFrame(show);
    }
    finish();
  } catch (error) {
    finish();
    if (error.name !== "AbortError") {
      reply.classList.add("error");
      follow(() => reply.append(element("p", "", `The reply failed: ${error.message}`)));
    }
  }
  if (content) conversation.push({ role: "assistant", content });
  else conversation.pop();
  if (timings && conversation === messages) {
    const line = element("p", "cost", cost(timings));
    line.append(...credits(tokens));
    follow(() => log.append(line));
  }
  running = null;
  busy(false);
}

function precompute() {
  typing?.abort();
  const text = $("text").value.trim();
  if (running || !text) return;
  typing = new AbortController();
  const asked = { messages: [...messages, { role: "user", content: text }] };
  post("/v1/precompute", asked, typing.signal).catch(() => {}); // it only makes the reply come sooner
}

function quiet() {
  clearTimeout(pause);
  typing?.abort();
}

function busy(is) {
  $("send").hidden = is;
  $("stop").hidden = !is;
  log.setAttribute("aria-busy", is); // a screen reader hears the reply when it is complete
  if (!is) $("text").focus();
}

function say(line) {
  if ($("status").textContent !== line) $("status").textContent = line; // else it would be read out again
}

async function status() {
  try {
    const health = await (await fetch("/health")).json();
    const drafting = health.drafters.filter((d) => d.state === "accepted");
    const refused = health.drafters.filter((d) => d.state === "refused");
    const inside = health.draft_mode === "sync" ? "drafts with a model of its own" : "no drafters";
    let line = drafting.length ? `drafters: ${drafting.map((d) => d.model).join(", ")}` : inside;
    if (refused.length) line += ` · refused: ${refused.map((d) => `${d.id} (${d.reason})`).join(", ")}`;
    if (health.status !== "ok") line = `the server is ${health.status} · ${line}`;
    if (!known && health.status !== "loading") line = (await model()) ?? line;
    say(line);
  } catch {
    say("the server does not answer");
  }
}

// What there is to complain of, if the server does not tell.
async function model() {
  if (refused === $("key").value.trim()) return askForKey();
  const response = await fetch("/v1/models", { headers: headers() });
  if (response.status === 401) return askForKey();
  if (!response.ok) return null;
  const card = (await response.json()).data[0];
  known = true;
  refused = null;
  $("key").removeAttribute("aria-invalid");
  $("model").textContent = `${card.id} · ${card.meta.description} · context ${card.meta.n_ctx}`;
  $("note").textContent = card.meta.note ?? "";
  $("note").hidden = !card.meta.note;
  return null;
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("text").value.trim();
  if (!text || running) return;
  quiet();
  $("text").value = "";
  ask(text);
});
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("form").requestSubmit();
  }
});
$("text").addEventListener("input", () => {
  clearTimeout(pause);
  pause = setTimeout(precompute, 250);
});
$("stop").addEventListener("click", () => running?.abort());
$("new").addEventListener("click", () => {
  running?.abort();
  quiet();
  messages = [];
  log.replaceChildren();
  $("text").focus();
});
document.querySelector(".example").addEventListener("click", (event) => ask(event.target.textContent));

$("guesses").checked = stored("duo-guesses") !== "hidden";
log.classList.toggle("guesses", $("guesses").checked);
$("guesses").addEventListener("change", () => {
  store("duo-guesses", $("guesses").checked ? "shown" : "hidden");
  log.classList.toggle("guesses", $("guesses").checked);
});

$("key").value = stored("duo-api-key");
$("key").addEventListener("change", () => {
  store("duo-api-key", $("key").value.trim());
  known = false;
  status();
});

status();
setInterval(status, 1000);
