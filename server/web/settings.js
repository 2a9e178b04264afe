// The dialog with the settings of the conversation and of this browser.

import { key } from "/web/api.js";
import { $, button, local } from "/web/dom.js";

// conversation(): returns the conversation on the screen. changed(): called after its settings have changed.
export class Settings {
  constructor({ conversation, changed }) {
    Object.assign(this, { conversation, changed });
    this.fields = [...$("of-conversation").querySelectorAll("[name]")];
    $("settings-open").addEventListener("click", () => this.open());
    $("settings").addEventListener("close", () => this.close());
    for (const [id, apply] of [["guesses", shade], ["ahead", ahead]]) {
      $(id).checked = local.get(id) !== "off";
      $(id).addEventListener("change", () => { local.set(id, $(id).checked ? "" : "off"); apply(); });
      apply();
    }
    $("theme").value = local.get("theme");
    $("theme").addEventListener("change", () => { local.set("theme", $("theme").value); theme(); });
    theme();
    $("key").value = key.get();
    $("key").addEventListener("change", () => { key.set($("key").value); $("key").removeAttribute("aria-invalid"); });
  }

  open() {
    for (const field of this.fields) field.value = this.conversation().settings[field.name];
    if (!$("settings").open) $("settings").showModal();
  }

  // The list of keys.
  keys() {
    this.open();
    $("keys").open = true;
    $("keys").querySelector("summary").focus();
  }

  close() {
    const made = Object.fromEntries(this.fields.map((field) => [field.name, field.validity.valid ? field.value.trim() : ""]));
    this.conversation().settings = made;
    local.set("settings", JSON.stringify(made));
    this.changed();
  }

  askForKey() {
    this.open();
    $("key").setAttribute("aria-invalid", "true");
    $("key").focus();
  }
}

function shade() {
  document.body.classList.toggle("guesses", local.get("guesses") !== "off");
}

// A sentence about what the server receives before a message is sent, with a switch for it.
function ahead() {
  const on = local.get("ahead") !== "off";
  const other = on ? "Wait for Enter" : "Send while I type";
  const flip = button(other, () => { local.set("ahead", on ? "off" : ""); $("ahead").checked = !on; ahead(); }, { class: "link" });
  $("typing").replaceChildren(on ? "What you type goes to the server while you type, so that the reply comes sooner. " : "What you type goes to the server when you send it. ", flip);
}

function theme() {
  document.documentElement.dataset.theme = local.get("theme");
}
