#!/usr/bin/env bash
# llguidance 1.9.1, which holds replies to JSON schemas in llama.cpp, vLLM and SGLang.
# Expected: `pattern: ^[^"]+$` admits no string with a quotation mark in it, and `^[^\\]+$` none with a backslash.
# Seen:     both are admitted, written as JSON writes them, \" and \\, wherever the class contains all control characters
#           (with or without the line feed), as a negated class does; so a reply that follows the schema's grammar need not fit
#           the schema. Written as `[ !#-~]` or as `[^\x00"]`, such classes are held. jsonschema 4.26.0 refuses the strings.
source "$(dirname "$0")/begin.sh"
from_pypi llguidance==1.9.1 jsonschema==4.26.0
PYTHONPATH="$findings" python - <<'PY'
import json
from importlib.metadata import version

import jsonschema
from byte_tokens import Bytes
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

tokenizer = LLTokenizer(TokenizerWrapper(Bytes()))


def admits(schema, text):
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(json.dumps(schema)))
    return all(matcher.try_consume_tokens([byte]) == 1 for byte in text.encode()) and matcher.is_accepting()


print("llguidance", version("llguidance"), "jsonschema", version("jsonschema"))
seen = []
for pattern, value in (
    ('^[^"]+$', 'a"'),
    (r"^[^\\]+$", "a\\"),
    (r'^[^"\n]+$', 'a"'),
    ("^[^x]+$", "x"),
    ("^[ !#-~]+$", 'a"'),
    (r'^[^\x00"]+$', 'a"'),
    ('^[^"]+$', "a"),
):
    schema = {"type": "string", "pattern": pattern}
    seen.append((admits(schema, json.dumps(value)), jsonschema.Draft202012Validator(schema).is_valid(value)))
    print(f"{pattern} admits {json.dumps(value)} (llguidance, jsonschema):", seen[-1])
assert seen == [(True, False)] * 3 + [(False, False)] * 3 + [(True, True)], "changed"
PY
