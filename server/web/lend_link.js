// The dialog with the link, and its QR code, by which another device drafts for this server.

import { key, lendLink } from "/web/api.js";
import { $ } from "/web/dom.js";

export function lendDialog() {
  $("lend-open").addEventListener("click", () => {
    $("lend-key").checked = false;
    $("lend-with-key").hidden = !key.get();
    $("lend").showModal();
    show();
  });
  $("lend-key").addEventListener("change", show);
  $("lend").addEventListener("close", () => put(null, ""));
}

function put(link, why) {
  $("lend-why").textContent = why;
  for (const id of ["lend-code", "lend-link"]) $(id).hidden = !link;
  $("lend-link").textContent = link?.url ?? "";
  if (link) {
    $("lend-code").src = link.code;
    $("lend-link").href = link.url;
  } else for (const [id, name] of [["lend-code", "src"], ["lend-link", "href"]]) $(id).removeAttribute(name);
}

async function show() {
  const withKey = $("lend-key").checked;
  let [link, why] = [null, ""];
  try {
    link = await lendLink(location.origin, withKey);
  } catch (error) {
    why = error.status ? error.message : "The server does not answer.";
  }
  if ($("lend").open && withKey === $("lend-key").checked) put(link, why);
}
