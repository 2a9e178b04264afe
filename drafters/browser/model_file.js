// The draft model's file, from the server once and then from this browser (IndexedDB, which pages have without TLS, too).

import { headers } from "/web/api.js";

export class Refused extends Error {
  constructor(message, wantsKey = false) {
    super(message);
    this.wantsKey = wantsKey;
  }
}

function opened() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open("duo-lend", 1);
    request.onupgradeneeded = () => request.result.createObjectStore("models", { keyPath: "tag" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = request.onblocked = () => reject(request.error ?? new Error("blocked"));
  });
}

function done(database, mode, act) {
  return new Promise((resolve, reject) => {
    const transaction = database.transaction("models", mode);
    const request = act(transaction.objectStore("models"));
    transaction.oncomplete = () => resolve(request.result);
    transaction.onerror = transaction.onabort = () => reject(transaction.error);
  });
}

// Keep this file, and no other one.
function keep(database, tag, blob) {
  return done(database, "readwrite", (store) => {
    store.clear();
    return store.put({ tag, blob });
  });
}

async function asked(method) {
  const response = await fetch("/lend/model", { method, headers: headers() });
  if (response.ok) return response;
  if (response.status === 401) throw new Refused("this server wants an API key", true);
  const error = method === "HEAD" ? (await (await fetch("/lend/model", { headers: headers() })).json()).error : null;
  throw new Refused(error?.message ?? `the server answers ${response.status}`);
}

// Return { name, blob }. progress(share): of what is loaded. Throws Refused, or TypeError if the server is gone.
export async function modelFile(progress) {
  const head = await asked("HEAD");
  const [tag, name] = [head.headers.get("etag"), decodeURIComponent(head.headers.get("x-file-name"))];
  let database = null;
  try {
    database = await opened();
    const kept = await done(database, "readonly", (store) => store.get(tag));
    if (kept) return { name, blob: kept.blob };
  } catch { /* nothing is kept: private windows may have no storage */ }
  const response = await asked("GET");
  const size = Number(response.headers.get("content-length"));
  const parts = [];
  let n = 0;
  for (const reader = response.body.getReader(); ; ) {
    const { value, done: ended } = await reader.read();
    if (ended) break;
    parts.push(value);
    progress((n += value.length) / size);
  }
  const blob = new Blob(parts);
  try { if (database) await keep(database, response.headers.get("etag"), blob); } catch { /* no room: loaded again next time */ }
  return { name, blob };
}
