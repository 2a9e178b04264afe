// One message on the screen: its text with guessed parts marked, its end, its cost, and its buttons.

import { versions } from "/web/conversation.js";
import { button, copy, element } from "/web/dom.js";
import { render } from "/web/markdown.js";
import { nameOf } from "/web/names.js";
import { thumbs } from "/web/pictures.js";

const N_COLOURS = 4;
const guessers = []; // sources in the order of first sight, which determines their colours

function colour(source) {
  if (!guessers.includes(source)) guessers.push(source);
  return guessers.indexOf(source) % N_COLOURS;
}

// Find the guessed parts of the text. Tokens that are not content may precede it.
export function guessed(text, tokens) {
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
    else if (source) runs.push({ start: Math.max(0, at), end: at + piece.length, source });
    at += piece.length;
  }
  return runs;
}

function rounded(n) {
  return n < 10 ? n.toFixed(1) : n.toFixed(0);
}

// Return a reply's cost in words.
export function cost(t) {
  const parts = [`${t.predicted_n} ${t.predicted_n === 1 ? "token" : "tokens"}`];
  if (t.predicted_per_second) parts.push(`${rounded(t.predicted_per_second)} tokens/s`);
  if (t.undrafted_per_second && t.predicted_per_second) {
    const times = t.predicted_per_second / t.undrafted_per_second;
    parts.push(`${times.toFixed(1)} times as fast as without drafts (estimate)`);
  }
  parts.push(`${t.cache_n} of ${t.cache_n + t.prompt_n} prompt tokens reused`);
  if (t.draft_n) parts.push(`${t.draft_n_accepted} of ${t.draft_n} guesses were right`);
  return parts.join(" · ");
}

const ENDED = {
  length: "The longest reply that the settings allow was reached.",
  context: "The model's context is full.",
  carried: "Carried over from a conversation that filled the model's context.",
  stopped: "You stopped this reply.",
  interrupted: "The page was closed while this reply came.",
};

// act: the functions of the buttons, each called with the message. drafters(): as in /health.
export class Turn {
  constructor(conversation, message, act, drafters) {
    Object.assign(this, { conversation, message, act, drafters });
    this.node = element("article", { class: `turn ${message.role}`, "aria-label": message.role === "user" ? "You" : "Reply" });
    this.body = element("div", { class: "text" });
    if (message.role === "assistant") {
      this.thoughts = element("details", { class: "thoughts" }, element("summary", {}, "Thoughts"), element("div"));
      this.news = element("ul", { class: "news", "aria-label": "Meanwhile" });
    }
    this.foot = element("footer");
    this.show();
  }

  show() {
    const { role, text } = this.message;
    if (role === "user") {
      this.body.textContent = text;
      const shown = element("div", { class: "pictures" }, ...thumbs(this.message.pictures ?? []));
      this.node.replaceChildren(...[shown.children.length && shown, text && this.body, this.foot].filter(Boolean));
      this.foot.replaceChildren(this.versions(), this.copy(), button("Edit", () => this.edit(), { class: "small" }));
    } else this.showReply();
  }

  showReply() {
    const { text, thoughts, runs, ended } = this.message;
    const marks = runs.map((run) => ({ ...run, label: this.name(run.source), colour: colour(run.source) }));
    render(this.body, text, marks);
    if (thoughts) {
      render(this.thoughts.lastChild, thoughts);
      if (!ended) this.thoughts.open = !text; // until the answer begins
    }
    for (const [node, wanted] of [[this.thoughts, thoughts], [this.body, true], [this.news, this.news.children.length], [this.foot, ended]]) {
      if (!wanted) node.remove();
      else if (node.parentNode !== this.node) this.node.append(node);
    }
    if (ended) this.showEnd();
  }

  showEnd() {
    const { ended, error, text, timings, counts } = this.message;
    this.node.classList.toggle("failed", ended === "failed");
    const lines = [];
    const why = ended === "failed" ? `The reply failed: ${error}` : ended === "context" && error ? error : ENDED[ended];
    if (why) lines.push(element("p", { class: "ended" }, why, " ", ...this.ways(ended)));
    if (timings) lines.push(element("p", { class: "cost" }, cost(timings)));
    const legend = Object.entries(counts).sort((a, b) => b[1] - a[1]);
    if (legend.length) {
      const chips = legend.flatMap(([source, n], i) => [i ? ", " : "Guessed by ", element("span", { class: `guess by${colour(source)}` }, `${this.name(source)}: ${n}`)]);
      lines.push(element("p", { class: "legend" }, ...chips, legend.length === 1 && legend[0][1] === 1 ? " token" : " tokens"));
    }
    const row = element("div", { class: "row" }, this.versions());
    if (text) row.append(this.copy());
    if (ended !== "failed" || text) row.append(button("Regenerate", () => this.act.again(this.message), { class: "small" }));
    if (timings?.draft_n) row.append(button("Replay without drafts", () => this.act.replay(this), { class: "small" }));
    this.foot.replaceChildren(...lines, row);
  }

  // A source's name at the time of the reply, because ids say less.
  name(source) {
    return this.message.names?.[source] ?? nameOf(source, this.drafters());
  }

  // Buttons to continue after this end.
  ways(ended) {
    const found = [];
    const some = this.message.text || this.message.thoughts;
    if (["length", "stopped", "interrupted", "carried"].includes(ended) && some) found.push(button("Continue", () => this.act.proceed(this.message)));
    if (ended === "context") found.push(button("Go on in a new conversation", () => this.act.move(this.message)));
    if (ended === "failed" || (ended === "interrupted" && !some)) found.push(button("Retry", () => this.act.again(this.message)));
    return found;
  }

  tell(news) {
    if (this.news.lastChild?.textContent !== news) this.news.append(element("li", {}, news));
    this.show();
  }

  copy() {
    return button("Copy", (event) => copy(event.target, this.message.text), { class: "small", "aria-label": "Copy this message" });
  }

  versions() {
    const all = versions(this.conversation, this.message);
    if (all.length < 2) return "";
    const at = all.indexOf(this.message);
    const turn = (by, text, label) => {
      const node = button(text, () => this.act.turn(all[at + by]), { class: "small", "aria-label": label });
      node.disabled = !all[at + by];
      return node;
    };
    return element("span", { class: "versions", role: "group", "aria-label": "Versions" }, turn(-1, "‹", "Earlier version"), `${at + 1}/${all.length}`, turn(1, "›", "Later version"));
  }

  edit() {
    const text = element("textarea", { "aria-label": "Edit the message", rows: "4" });
    text.value = this.message.text;
    let pictures = this.message.pictures ?? [];
    const shown = element("div", { class: "pictures" });
    const show = () => shown.replaceChildren(...thumbs(pictures, (at) => { pictures = pictures.toSpliced(at, 1); show(); text.focus(); }));
    const leave = () => { this.show(); this.foot.lastChild.focus(); };
    const send = () => (text.value.trim() || pictures.length) && this.act.edit(this.message, text.value.trim(), pictures);
    text.addEventListener("keydown", (event) => {
      if (event.key === "Escape") leave();
      else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send();
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    show();
    this.node.replaceChildren(shown, text, element("div", { class: "row" }, button("Send", send, { class: "main" }), button("Cancel", leave)));
    text.focus();
  }

  // Show the reply beside a second one. Return a function that shows the second: (text, line, verdict).
  beside() {
    this.node.querySelector(".replay")?.remove();
    const column = (title) => element("div", {}, element("h2", {}, title), element("p", { class: "cost" }), element("div", { class: "text" }));
    const [own, other] = [column("With drafts"), column("Without drafts")];
    const { text, timings } = this.message;
    own.children[1].textContent = cost(timings).split(" · ").slice(0, 2).join(" · ");
    render(own.children[2], text);
    const close = button("Close", () => box.remove(), { class: "small" });
    const verdict = element("p", { class: "verdict", role: "status" });
    const box = element("section", { class: "replay", "aria-label": "Replay without drafts" }, element("div", { class: "columns" }, own, other), verdict, close);
    this.node.append(box);
    box.scrollIntoView({ block: "nearest" });
    return (shown, line, said = "") => {
      verdict.textContent = said;
      if (said) box.scrollIntoView({ block: "nearest" });
      render(other.children[2], shown);
      other.children[1].textContent = line;
    };
  }
}
