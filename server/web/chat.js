// The chat page: one conversation, streamed from /v1/chat/completions. No dependencies, no build step.

const $ = (id) => document.getElementById(id);
const log = $("log");
let messages = [];
let running = null; // the AbortController of the reply being streamed
let typing = null; // that of the request that has what is typed evaluated beforehand
let pause = 0; // the timer that waits for a pause in typing
let known = false; // whether the server has said which model it serves
let refused = null; // the key that it did not take

function element(tag, className, text = "") {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.textContent = text;
  return node;
}

// The key stays in this browser. Where storage is switched off it lasts as long as the page.
function storedKey() {
  try { return localStorage.getItem("duo-api-key") ?? ""; } catch { return ""; }
}

function storeKey(key) {
  try { localStorage.setItem("duo-api-key", key); } catch { /* it stays in the field */ }
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

// Markdown of the plainest kind: fenced code, `code` and **bold**. Everything else stays text.
function render(target, text) {
  target.replaceChildren();
  text.split(/^```/m).forEach((part, i) => {
    if (i % 2) {
      const pre = element("pre");
      pre.append(element("code", "", part.replace(/^[^\n]*\n?/, "")));
      target.append(pre);
      return;
    }
    for (const paragraph of part.split(/\n{2,}/)) {
      if (!paragraph.trim()) continue;
      const p = element("p");
      for (const piece of paragraph.trim().split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/)) {
        if (/^`.+`$/.test(piece)) p.append(element("code", "", piece.slice(1, -1)));
        else if (/^\*\*.+\*\*$/.test(piece)) p.append(element("strong", "", piece.slice(2, -2)));
        else p.append(piece);
      }
      target.append(p);
    }
  });
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
  try {
    const response = await post("/v1/chat/completions", { messages: conversation, stream: true }, running.signal);
    if (response.status === 401) throw new Error(askForKey());
    if (!response.ok) throw new Error((await response.json()).error.message);
    for await (const chunk of events(response.body)) {
      if (chunk.error) throw new Error(chunk.error.message);
      const delta = chunk.choices[0]?.delta ?? {};
      if (delta.content && !content) thoughts.open = false; // the answer begins
      content += delta.content ?? "";
      thought.textContent += delta.reasoning_content ?? "";
      timings = chunk.timings ?? timings;
      follow(() => {
        render(reply, content);
        if (thought.textContent) reply.prepend(thoughts);
      });
    }
  } catch (error) {
    if (error.name !== "AbortError") {
      reply.classList.add("error");
      follow(() => reply.append(element("p", "", `The reply failed: ${error.message}`)));
    }
  }
  if (content) conversation.push({ role: "assistant", content });
  else conversation.pop();
  if (timings && conversation === messages) follow(() => log.append(element("p", "cost", cost(timings))));
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

$("key").value = storedKey();
$("key").addEventListener("change", () => {
  storeKey($("key").value.trim());
  known = false;
  status();
});

status();
setInterval(status, 1000);
