// Show the server's activity once a second, from /health, /metrics and /v1/models.

import { headers, health, model } from "/web/api.js";
import { $, element, local } from "/web/dom.js";
import { nameOf } from "/web/names.js";

const N_LOOKS = 600; // samples kept, one a second: ten minutes
const past = []; // { at, tokens, drafted, accepted, busy }, the newest last
let card = null;

document.documentElement.dataset.theme = local.get("theme");

// Samples of Prometheus' text format: [{ name, labels, value }].
export function samples(text) {
  return text.split("\n").filter((line) => line && !line.startsWith("#")).map((line) => {
    const [, name, inner = "", value] = /^([\w:]+)(?:\{(.*)\})? (\S+)/.exec(line) ?? [];
    const labels = Object.fromEntries([...inner.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, label, said]) => [label, said.replace(/\\(.)/g, "$1")]));
    return { name, labels, value: Number(value) };
  });
}

async function metrics() {
  const response = await fetch("/metrics", { headers: headers() });
  return response.ok ? samples(await response.text()) : null;
}

function list(id, rows) {
  $(id).replaceChildren(...rows.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
}

function table(id, heads, rows, none) {
  const cells = (row, tag) => element("tr", {}, ...row.map((cell) => element(tag, tag === "th" ? { scope: "col" } : {}, cell)));
  const body = rows.map((row) => cells(row, "td"));
  $(id).replaceChildren(rows.length ? element("table", {}, element("thead", {}, cells(heads, "th")), element("tbody", {}, ...body)) : element("p", { class: "none" }, none));
}

function percent(part, whole) {
  return whole > 0 ? `${Math.round((100 * part) / whole)} %` : "–";
}

function size(bytes) {
  const units = ["bytes", "KB", "MB", "GB"];
  const k = units.findLastIndex((_, i) => bytes >= 1024 ** i || i === 0);
  return `${(bytes / 1024 ** k).toFixed(k ? 1 : 0)} ${units[k]}`;
}

function conversations(n) {
  return `${n} conversation${n === 1 ? "" : "s"}`;
}

const OUTCOMES = {
  fresh: "in time", late: "partly late", stale: "wrong, too late or for a closed conversation", full: "more than there was room for",
  lost: "after one that did not arrive", invalid: "with tokens that do not exist",
};

function told(counts) {
  const messages = Object.entries(counts).filter(([name, n]) => n && name !== "drafted" && name !== "accepted");
  return messages.map(([name, n]) => `${n} ${OUTCOMES[name] ?? name}`).join(", ") || "–";
}

// Draw a line over the last ten minutes. values: numbers, the newest last; null where there is none.
function plot(title, values, unit) {
  const most = Math.max(...values, 1e-9); // null counts as 0
  const at = (i) => 100 - (values.length - 1 - i) * (100 / (N_LOOKS - 1));
  const line = values.map((value, i) => (value === null ? "" : `${values[i - 1] == null ? "M" : "L"}${at(i).toFixed(2)} ${(38 - (36 * value) / most).toFixed(2)}`)).join("");
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  const said = (value) => (value === null ? "–" : `${value.toFixed(value < 10 ? 1 : 0)}${unit}`);
  const words = values.every((value) => value === null) ? `${title}: –` : `${title}: ${said(values.at(-1))} now, at most ${most < 1e-6 ? `0${unit}` : said(most)}`;
  for (const [name, value] of [["viewBox", "0 0 100 40"], ["preserveAspectRatio", "none"], ["role", "img"], ["aria-label", words]]) svg.setAttribute(name, value);
  path.setAttribute("d", line);
  svg.append(path);
  return element("figure", {}, svg, element("figcaption", {}, words));
}

function rates(pick) {
  return past.slice(1).map((look, i) => pick(look, past[i]));
}

function show(seen, found) {
  const value = (name, labels = {}) => (found ?? []).filter((one) => one.name === name && Object.entries(labels).every(([k, v]) => one.labels[k] === v)).reduce((sum, one) => sum + one.value, 0);
  past.push({ at: performance.now(), tokens: value("duo:tokens_predicted_total"), drafted: value("duo:draft_tokens_total"), accepted: value("duo:draft_tokens_accepted_total"), busy: seen.slots.busy });
  past.splice(0, past.length - N_LOOKS - 1);
  const grown = (name) => (look, before) => Math.max(0, look[name] - before[name]);
  const speeds = rates((look, before) => (1000 * grown("tokens")(look, before)) / (look.at - before.at));
  const used = value("llamacpp:kv_cache_usage_ratio");
  list("now", [
    ["Model", card ? card.id : "–"],
    ["Context", card ? `${card.meta.n_ctx} tokens` : "–"],
    ["Tokens per second", speeds.length ? speeds.at(-1).toFixed(0) : "–"],
    ["Replies", `${seen.slots.busy} of ${seen.slots.total} places taken`],
    ["Waiting", `${seen.queued}`],
    ["Right guesses since the start", percent(value("duo:draft_tokens_accepted_total"), value("duo:draft_tokens_total"))],
    ["Tokens per step since the start", value("duo:steps_total") ? (value("duo:tokens_predicted_total") / value("duo:steps_total")).toFixed(2) : "–"],
    ["KV cache in use", percent(used, 1)],
    ["Python in a step", `${Math.round(seen.engine.step_python_us)} µs`],
  ]);
  if (past.length > 1) {
    $("plots").replaceChildren(
      plot("Tokens per second", speeds, ""),
      plot("Guesses that were right", rates((look, before) => (grown("drafted")(look, before) ? (100 * grown("accepted")(look, before)) / grown("drafted")(look, before) : null)), " %"),
      plot("Replies at once", past.slice(1).map(({ busy }) => busy), ""),
    );
  }
  drafters(seen);
  sources(seen, found ?? []);
  const widths = Object.entries(seen.gate.step_ms).map(([rows, ms]) => [Number(rows), ms]).sort(([a], [b]) => a - b);
  const first = widths[0]?.[1];
  table("widths", ["rows", "milliseconds", "by one row"], widths.map(([rows, ms]) => [`${rows}`, ms.toFixed(2), `${(ms / first).toFixed(2)} times`]), "Nothing measured yet.");
  list("cache", [
    ["In memory", `${conversations(value("duo:cache_conversations", { tier: "memory" }))}, ${size(value("duo:cache_bytes", { tier: "memory" }))}`],
    ["On disk", `${conversations(value("duo:cache_conversations", { tier: "disk" }))}, ${size(value("duo:cache_bytes", { tier: "disk" }))}`],
    ["Brought back", `${value("duo:cache_loads_total")}`],
    ["Prompt tokens reused", percent(value("duo:prompt_tokens_cached_total"), value("duo:prompt_tokens_cached_total") + value("duo:prompt_tokens_total"))],
  ]);
}

function drafters({ drafters: all, draft_mode }) {
  const rows = all.map(({ name, kind, model: file, state, reason, rests, counts }) => [
    name, kind, file, state === "accepted" ? (rests ? `rests: ${rests}` : "drafts") : element("span", { class: "bad" }, `refused: ${reason}`),
    `${counts.accepted ?? 0} of ${counts.drafted ?? 0} (${percent(counts.accepted ?? 0, counts.drafted ?? 0)})`, told(counts),
  ]);
  const none = draft_mode === "sync" ? "None; a draft model works beside the model itself." : "None. One joins with the command that duo up prints.";
  table("drafters", ["name", "kind", "model", "state", "guesses that were right", "messages"], rows, none);
}

function sources({ drafters: all }, found) {
  const by = new Map();
  for (const { name, labels, value } of found) {
    if (name !== "duo:drafter_tokens_total") continue;
    const one = by.get(labels.drafter) ?? {};
    by.set(labels.drafter, { ...one, [labels.outcome]: value });
  }
  const rows = [...by].map(([source, one]) => {
    const checked = (one.accepted ?? 0) + (one.wasted ?? 0);
    return [nameOf(source, all), `${checked}`, percent(one.accepted ?? 0, checked)];
  });
  table("sources", ["who", "checked", "right"], rows, "None checked yet, in replies that have ended.");
}

function say(line, bad = false) {
  if ($("state").textContent !== line) $("state").textContent = line;
  $("state").className = bad ? "bad" : "";
}

async function look() {
  try {
    const seen = await health();
    if (seen.status === "loading") return say("the model is loading");
    const found = await metrics();
    card ??= await model().catch(() => null);
    show(seen, found);
    say(seen.status !== "ok" ? `the server is ${seen.status}` : found ? "the server is well" : "counts need an API key (Settings of the chat page), or metrics are switched off", seen.status === "stuck");
  } catch {
    say("the server does not answer", true);
  }
}

look();
setInterval(look, 1000);
