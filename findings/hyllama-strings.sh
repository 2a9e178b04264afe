#!/usr/bin/env bash
# hyllama 0.2.2, a reader of GGUF files for JavaScript (it lists a model's metadata in browsers).
# Expected: strings of a GGUF file are UTF-8, so the vocabulary of a BPE model has the tokens that its tokenizer has.
# Seen:     each byte becomes a character of its own. `Ġthe`, as every GPT-2 style vocabulary writes a word with its blank,
#           is read as `Ä `the`, and a model's name with an accent is wrong as well. The GGUF project's own reader and
#           @huggingface/gguf 0.4.6 agree on the right ones.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" --quiet --disable-pip-version-check install gguf==0.19.0
cd "$dir"
npm install --silent --no-audit --no-fund hyllama@0.2.2 @huggingface/gguf@0.4.6 >/dev/null
"$dir/venv/bin/python" - <<'PY'
import gguf
import numpy

writer = gguf.GGUFWriter("small.gguf", "llama")
writer.add_name("Modèle")
writer.add_tokenizer_model("gpt2")
writer.add_token_list(["the", "Ġthe"])
writer.add_tensor("token_embd.weight", numpy.zeros((2, 32), numpy.float32))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
PY
cat > read.mjs <<'JS'
import { readFileSync } from "node:fs";
import { gguf } from "@huggingface/gguf";
import { ggufMetadata } from "hyllama";
const file = readFileSync("small.gguf");
const bytes = file.buffer.slice(file.byteOffset, file.byteOffset + file.byteLength);
const strings = (metadata) => JSON.stringify([metadata["general.name"], metadata["tokenizer.ggml.tokens"][1]]);
const theirs = strings(ggufMetadata(bytes).metadata);
const right = strings((await gguf("small.gguf", { allowLocalFile: true })).metadata);
console.log("hyllama 0.2.2", theirs, "@huggingface/gguf 0.4.6", right);
if (right !== '["Modèle","Ġthe"]' || theirs === right) throw new Error("changed");
JS
node read.mjs
