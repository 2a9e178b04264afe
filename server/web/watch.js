// Query the server once a second: its model, whether it answers, and its drafters.

import { health, key, model } from "/web/api.js";
import { $ } from "/web/dom.js";

export class Watch {
  // news(line): called when a drafter joins or leaves. askForKey(): called when the server wants another key.
  constructor({ news, askForKey }) {
    Object.assign(this, { news, askForKey, drafters: [], seen: [], n_ctx: null, sees: false });
    this.known = null; // the key with which the server reported its model
    this.refused = null; // the key that the server refused
  }

  start() {
    const look = () => document.hidden || this.look();
    document.addEventListener("visibilitychange", look);
    this.look();
    setInterval(look, 1000);
  }

  async look() {
    let line = "the server does not answer";
    try {
      const seen = await health();
      line = this.read(seen);
      if (this.known !== key.get() && this.refused !== key.get() && seen.status !== "loading") await this.introduce();
      if (this.refused === key.get()) line = "this server wants an API key";
    } catch { /* it may be starting */ }
    if ($("status").textContent !== line) $("status").textContent = line; // else it would be read out again
  }

  read({ status, drafters, draft_mode }) {
    const [before, now] = [this.drafters, drafters];
    const accepted = (list) => list.filter(({ state }) => state === "accepted");
    if (this.looked) {
      for (const one of accepted(now)) if (!accepted(before).some(({ id }) => id === one.id)) this.news(`${one.name} drafts now`);
      for (const one of accepted(before)) if (!accepted(now).some(({ id }) => id === one.id)) this.news(`${one.name} has left`);
    }
    this.looked = true;
    this.drafters = now;
    this.seen = [...now, ...this.seen.filter(({ id }) => !now.some((one) => one.id === id))];
    const called = (list) => list.map(({ name }) => name).join(", ");
    const [working, resting] = [accepted(now).filter(({ rests }) => !rests), accepted(now).filter(({ rests }) => rests)];
    $("status").title = accepted(now).map(({ name, kind, model: file, rests }) => `${name}: ${kind}, ${file}${rests ? `, rests: ${rests}` : ""}`).join("\n");
    let line = working.length ? `drafting: ${called(working)}` : draft_mode === "sync" ? "drafts by itself" : resting.length ? "" : "no drafters";
    if (resting.length) line += `${line && " · "}resting: ${called(resting)}`;
    const refused = now.filter(({ state }) => state === "refused");
    if (refused.length) line += ` · refused: ${refused.map(({ name, reason }) => `${name} (${reason})`).join(", ")}`;
    return status === "ok" ? line : `the server is ${status} · ${line}`;
  }

  async introduce() {
    const mine = key.get();
    try {
      const card = await model();
      this.n_ctx = card.meta.n_ctx;
      this.sees = card.architecture.input_modalities.includes("image");
      $("attach").hidden = !this.sees;
      $("model").textContent = card.id;
      $("model").title = `${card.meta.description}, context ${card.meta.n_ctx}`;
      $("note").textContent = card.meta.note ?? "";
      $("note").hidden = !card.meta.note;
      Object.assign(this, { known: mine, refused: null });
    } catch (error) {
      if (error.status !== 401) return;
      this.refused = mine;
      this.askForKey();
    }
  }
}
