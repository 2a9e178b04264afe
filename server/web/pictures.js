// Pictures of messages: read from files, scaled down to the size that models see, shown with a button to remove each.

import { $, button, element, say } from "/web/dom.js";

const FORMATS = ["image/png", "image/jpeg", "image/webp", "image/gif"]; // formats that the server reads
const MOST_BYTES = 50e6; // maximum bytes of a file, so that a phone's browser has the memory to read it
const SIDE = 2048; // maximum pixels of a side: projectors use no more. Half: small print is lost; twice: four times the bytes
const KEPT_BYTES = 1e6; // maximum bytes of a file that is sent unchanged, because each turn sends all pictures again

// The pictures of unsent messages, by conversation.
export class Shots {
  // sees(): whether the model reads pictures. changed(): called after a picture was added or removed.
  constructor({ sees, changed }) {
    Object.assign(this, { sees, changed, lists: new Map(), key: "", reading: Promise.resolve() });
    $("pictures").addEventListener("change", ({ target }) => { this.add([...target.files]); target.value = ""; });
  }

  get list() {
    return this.lists.get(this.key) ?? [];
  }

  // Show the pictures of this conversation.
  open(key) {
    this.key = key;
    this.show();
  }

  take() {
    const taken = this.list;
    this.lists.delete(this.key);
    this.show();
    return taken;
  }

  // Read files one after the other. `reading` resolves after all of them.
  add(files) {
    const { key } = this;
    if (!this.sees()) return say(`Left out: ${files.map(named).join(", ")}. This model reads text only.`);
    this.reading = this.reading.then(() => this.read(files, key));
  }

  async read(files, key) {
    const faults = [];
    for (const file of files) {
      try {
        this.lists.set(key, [...(this.lists.get(key) ?? []), await urlOf(file)]);
      } catch (error) {
        faults.push(`${named(file)} ${error.message}`);
      }
    }
    if (faults.length) say(`Left out: ${faults.join(", ")}.`);
    this.show();
    this.changed();
  }

  show() {
    const drop = (at) => {
      this.lists.set(this.key, this.list.toSpliced(at, 1));
      this.show();
      this.changed();
      $("text").focus();
    };
    $("shots").replaceChildren(...thumbs(this.list, drop));
  }
}

function named({ name }) {
  return name || "the picture";
}

// Return elements that show pictures. drop(index): removes one; without drop they have no button.
export function thumbs(urls, drop) {
  return urls.map((src, at) => {
    const image = element("img", { src, alt: `Picture ${at + 1}` });
    return drop ? element("figure", {}, image, button("×", () => drop(at), { "aria-label": `Leave out picture ${at + 1}` })) : image;
  });
}

// Return a data URL that the server reads. Throws the file's problem, in words that follow its name.
async function urlOf(file) {
  if (file.size > MOST_BYTES) throw new Error(`(too large: at most ${MOST_BYTES / 1e6} MB)`);
  let bitmap;
  try { bitmap = await createImageBitmap(file); } catch { throw new Error("(not a picture that this browser reads)"); }
  const { width, height } = bitmap;
  const scale = Math.min(1, SIDE / Math.max(width, height));
  if (scale === 1 && file.size <= KEPT_BYTES && FORMATS.includes(file.type)) return asItIs(file);
  const canvas = element("canvas", { width: Math.max(1, Math.round(width * scale)), height: Math.max(1, Math.round(height * scale)) });
  const context = canvas.getContext("2d");
  context.fillStyle = "white"; // JPEG has no transparency
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", 0.9);
}

function asItIs(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error("(it cannot be read)"));
    reader.readAsDataURL(file);
  });
}
