// Conversations in this browser (IndexedDB), one record each. Other tabs are notified of every change, and lose no data.

import { merged } from "/web/conversation.js";

const changes = "BroadcastChannel" in globalThis ? new BroadcastChannel("duo") : null;
const memory = new Map(); // used alone if the browser stores nothing
let database = null;

export async function open(onchange) {
  try {
    database = await new Promise((resolve, reject) => {
      const request = indexedDB.open("duo", 1);
      request.onupgradeneeded = () => request.result.createObjectStore("conversations", { keyPath: "id" });
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
      request.onblocked = () => reject(new Error("blocked"));
    });
  } catch {
    database = null;
  }
  if (changes) changes.onmessage = ({ data }) => onchange(data);
  return database !== null;
}

function asked(mode, act) {
  return new Promise((resolve, reject) => {
    const transaction = database.transaction("conversations", mode);
    const request = act(transaction.objectStore("conversations"));
    transaction.oncomplete = () => resolve(request.result);
    transaction.onerror = transaction.onabort = () => reject(transaction.error ?? request.error);
  });
}

// Return all conversations, the latest first.
export async function all() {
  const list = database ? await asked("readonly", (store) => store.getAll()) : [...memory.values()];
  return list.sort((a, b) => b.changed - a.changed);
}

export async function load(id) {
  return database ? asked("readonly", (store) => store.get(id)) : memory.get(id);
}

// Save a conversation, merged with the changes of other tabs. running: whether one of its replies runs.
// Throws QuotaExceededError if the browser's storage is full.
export async function save(conversation, running = false) {
  if (!database) memory.set(conversation.id, conversation);
  else await put(conversation);
  tell(conversation.id, running);
}

// Read and write in one transaction, so that no other tab writes in between.
function put(conversation) {
  const { id } = conversation;
  return new Promise((resolve, reject) => {
    const transaction = database.transaction("conversations", "readwrite");
    const store = transaction.objectStore("conversations");
    transaction.oncomplete = resolve;
    transaction.onabort = () => reject(transaction.error);
    store.get(id).onsuccess = ({ target: { result: other } }) => {
      store.put(other ? merged(conversation, other) : conversation);
      for (const [key, message] of Object.entries(other?.messages ?? {})) conversation.messages[key] ??= message;
    };
  });
}

// Notify other tabs that a conversation has changed.
export function tell(id, running = false) {
  changes?.postMessage({ id, running });
}

export async function remove(id) {
  if (database) await asked("readwrite", (store) => store.delete(id));
  else memory.delete(id);
  changes?.postMessage({ id, removed: true });
}
