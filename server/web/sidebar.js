// The list of conversations: search, names, export and import.

import { imported } from "/web/conversation.js";
import { $, button, element, local, say } from "/web/dom.js";
import * as store from "/web/store.js";

// open(id or null): shows a conversation. current(): returns the conversation on the screen.
export class Sidebar {
  constructor({ open, current }) {
    Object.assign(this, { open, current });
    $("search").addEventListener("input", () => this.show());
    $("new").addEventListener("click", () => this.leave(null));
    this.narrow = matchMedia("(max-width: 50rem)"); // as in chat.css
    this.narrow.addEventListener("change", () => this.drawer(false));
    $("show").addEventListener("click", () => this.drawer(true));
    $("hide").addEventListener("click", () => this.drawer(false));
    const left = (node) => this.isOpen && node && !$("side").contains(node) && $("side").classList.remove("open");
    $("side").addEventListener("focusout", ({ relatedTarget }) => left(relatedTarget));
    document.addEventListener("pointerdown", ({ target }) => left(target));
    $("export-all").addEventListener("click", async () => download("duo-conversations.json", await store.all()));
    $("import").addEventListener("change", () => this.import());
  }

  // On a narrow screen the list covers the page. It closes when it loses the focus.
  drawer(open) {
    const was = this.isOpen;
    $("side").classList.toggle("open", open);
    $("show").setAttribute("aria-expanded", this.isOpen);
    if (this.isOpen) $("new").focus();
    else if (was) $("show").focus();
  }

  get isOpen() {
    return this.narrow.matches && $("side").classList.contains("open");
  }

  leave(id) {
    this.drawer(false);
    this.open(id);
  }

  async show() {
    const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const list = await store.all();
    const fits = (one) => {
      const whole = [one.title, ...Object.values(one.messages).map(({ text }) => text)].join("\n").toLowerCase();
      return words.every((word) => whole.includes(word));
    };
    const found = list.filter(fits);
    const none = words.length ? "Nothing found" : "No conversations yet";
    const shown = JSON.stringify([this.current()?.id, found.length ? found.map(({ id, title }) => [id, title]) : none]);
    if (shown === this.shown && !$("list").querySelector("input")) return; // focus stays where it is
    this.shown = shown;
    $("list").replaceChildren(...found.map((one) => this.item(one)));
    if (!found.length) $("list").append(element("li", { class: "none" }, none));
  }

  item(one) {
    const here = one.id === this.current()?.id;
    const title = one.title || "Untitled";
    const open = button(title, () => this.leave(one.id), { class: "open", ...(here ? { "aria-current": "page" } : {}) });
    const item = element("li", here ? { class: "here" } : {}, open);
    item.append(
      button("✎", () => this.rename(item, one), { "aria-label": `Rename ${title}` }),
      button("↓", () => download(`${title.replace(/[^\w -]/g, "").slice(0, 40) || "conversation"}.json`, [one]), { "aria-label": `Export ${title}` }),
      button("×", () => this.remove(one), { "aria-label": `Delete ${title}` }),
    );
    return item;
  }

  rename(item, one) {
    const field = element("input", { "aria-label": "New name", value: one.title });
    const done = async (keep) => {
      field.onblur = null;
      if (keep && field.value.trim()) {
        const latest = (await store.load(one.id)) ?? one;
        await this.put(Object.assign(latest, { title: field.value.trim(), named: true }));
        const current = this.current();
        if (current?.id === one.id) Object.assign(current, { title: latest.title, named: true });
      }
      this.show();
    };
    field.onblur = () => done(true);
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter") done(true);
      else if (event.key === "Escape") done(false);
      else return;
      event.stopPropagation();
    });
    item.replaceChildren(field);
    field.focus();
    field.select();
  }

  async remove(one) {
    const was = (await store.load(one.id)) ?? one;
    await store.remove(one.id);
    const draft = local.get(`draft-${one.id}`);
    local.set(`draft-${one.id}`, "");
    if (this.current()?.id === one.id) this.open(null);
    this.show();
    say(`Deleted “${one.title || "Untitled"}”.`, async () => {
      local.set(`draft-${one.id}`, draft);
      await this.put(was);
      this.show();
    });
  }

  // Save, and show a message if the browser has no room. Return true if it was saved.
  async put(conversation, running = false) {
    try {
      await store.save(conversation, running);
      return true;
    } catch (error) {
      const full = error?.name === "QuotaExceededError";
      say(full ? "The browser's room for conversations is full: delete or export some." : `Not saved: ${error?.message ?? error}`);
      return false;
    }
  }

  async import() {
    const [file] = $("import").files;
    $("import").value = "";
    if (!file) return;
    try {
      const list = imported(await file.text());
      for (const one of list) await this.put(one);
      say(`Imported ${list.length === 1 ? "one conversation" : `${list.length} conversations`}.`);
      this.leave(list[0]?.id ?? null);
    } catch (error) {
      say(`${file.name} was not imported: ${error.message}`);
    }
    this.show();
  }
}

function download(name, conversations) {
  const blob = new Blob([JSON.stringify({ duo: 1, conversations }, null, 1)], { type: "application/json" });
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
