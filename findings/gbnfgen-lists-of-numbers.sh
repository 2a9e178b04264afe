#!/usr/bin/env bash
# @intrinsicai/gbnfgen 0.10.0, which makes grammars for llama.cpp from TypeScript interfaces (llguidance 1.9.1 runs
# them here).
# Expected: `number[]` is named as supported, so `[1, 2]` can be said. An interface that extends another has the
#           members of both, a member may be null or left out where the interface says so, and what is admitted is
#           JSON.
# Seen:     the first item of a list of numbers must be a text: `["1", 2]` is admitted, `[1, 2]` refused. What an
#           interface inherits is left out, and so is the null of `string | null`; an optional member must be written.
#           A text ends at the first quotation mark, so no quotation can be in it, while a line break may stand in it
#           as it is. No error is raised, as there is for types that are not supported (`number[][]`).
source "$(dirname "$0")/begin.sh"
from_pypi llguidance==1.9.1
from_npm @intrinsicai/gbnfgen@0.10.0
cat > make.mjs <<'JS'
import { compileSync, serializeGrammar } from "@intrinsicai/gbnfgen";
const make = (source) => serializeGrammar(compileSync(source, "Reply"));
const sources = {
  list: "interface Reply { a: number[]; }",
  base: "interface Base { b: number; }\ninterface Reply extends Base { a: number; }",
  none: "interface Reply { a: string | null; }",
  optional: "interface Reply { a: number; b?: number; }",
  text: "interface Reply { a: string; }",
};
const grammars = Object.entries(sources).map(([name, source]) => [name, [source, make(source)]]);
console.log(JSON.stringify(Object.fromEntries(grammars)));
try {
  make("interface Reply { a: number[][]; }");
  process.exitCode = 1;
} catch (error) {
  console.error(error.message);
}
JS
node make.mjs >grammars.json
cat > admits.py <<'PY'
import json

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import gbnf_to_lark


class Bytes:
    eos_token_id, bos_token_id, special_token_ids = 256, None, [256]
    tokens = [*(bytes([i]) for i in range(256)), b"<eos>"]

    def __call__(self, text):
        return list(text.encode() if isinstance(text, str) else text)


tokenizer = LLTokenizer(TokenizerWrapper(Bytes()))


def admits(grammar, text):
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(gbnf_to_lark(grammar)))
    assert not matcher.is_error(), matcher.get_error()
    return all(matcher.try_consume_tokens([byte]) == 1 for byte in text.encode()) and matcher.is_accepting()


cases = [  # name, text, whether it fits the interface, whether it is admitted
    ("list", '{"a":[]}', True, True),
    ("list", '{"a":[1,2]}', True, False),
    ("list", '{"a":["1",2]}', False, True),
    ("base", '{"a":1,"b":2}', True, False),
    ("base", '{"b":2,"a":1}', True, False),
    ("base", '{"a":1}', False, True),
    ("none", '{"a":"x"}', True, True),
    ("none", '{"a":null}', True, False),
    ("optional", '{"a":1,"b":2}', True, True),
    ("optional", '{"a":1}', True, False),
    ("text", r'{"a":"say \"hi\""}', True, False),
    ("text", '{"a":"two\nlines"}', False, True),
]
grammars = json.load(open("grammars.json"))
for name, text, fits, expected in cases:
    source, grammar = grammars[name]
    seen = admits(grammar, text)
    print(f"{source!r}: {text!r} fits {fits}, admitted {seen}")
    assert seen == expected, "changed"
PY
python admits.py
