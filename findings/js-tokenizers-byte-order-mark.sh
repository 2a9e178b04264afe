#!/usr/bin/env bash
# ai-tokenizer 1.0.6, gpt-tokenizer 4.0.0 and js-tiktoken 1.0.21, which count and cut prompts in JavaScript, with o200k_base.
# Expected: the tokens of this vocabulary, in which U+FEFF (C# files of Visual Studio begin with it, and joined files have it within)
#           is 5574; and decoding them gives the text.
# Seen:     three answers. js-tiktoken has the token, but loses it in decoding where a text begins with it. gpt-tokenizer does not
#           know it and spells it in two, so it counts one too many, and loses it in decoding within a text. ai-tokenizer drops
#           it from the beginning of a text and counts one too few, and loses it in decoding everywhere.
source "$(dirname "$0")/begin.sh"
from_npm ai-tokenizer@1.0.6 gpt-tokenizer@4.0.0 js-tiktoken@1.0.21
cat > count.mjs <<'JS'
import Tokenizer from "ai-tokenizer";
import * as encodings from "ai-tokenizer/encoding";
import * as gpt from "gpt-tokenizer/encoding/o200k_base";
import { getEncoding } from "js-tiktoken";
const ai = new Tokenizer(encodings.o200k_base);
const tiktoken = getEncoding("o200k_base");
const tokenizers = { "js-tiktoken": tiktoken, "gpt-tokenizer": gpt, "ai-tokenizer": ai };
const seen = {};
for (const text of ["a b", "a\ufeff b", "\ufeffa b"])
  for (const [name, tokenizer] of Object.entries(tokenizers)) {
    const ids = [...tokenizer.encode(text)];
    const same = tokenizer.decode(ids) === text;
    console.log(`${name}, ${JSON.stringify(text).replace("\ufeff", "\\ufeff")}: ${ids}, decodes to the text: ${same}`);
    (seen[name] ??= []).push([ids.length, same]);
  }
const expected = {
  "js-tiktoken": [[2, true], [3, true], [3, false]],
  "gpt-tokenizer": [[2, true], [4, false], [4, true]],
  "ai-tokenizer": [[2, true], [3, false], [2, false]],
};
if (JSON.stringify(seen) !== JSON.stringify(expected)) throw new Error("changed: " + JSON.stringify(seen));
JS
node count.mjs
