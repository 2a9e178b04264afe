#!/usr/bin/env bash
# glrmask 0.5.0, which holds a model's tokens to a JSON schema and raises an error for the keywords that it does not know.
# Expected: `multipleOf` admits negative multiples as well as positive ones, and `^yes$|^no` admits "yes" and what begins with "no".
# Seen:     negative multiples are refused: -0.5 for a number with `multipleOf: 0.5`, with a range or without, and -14 for an integer
#           from -20 to 20 with `multipleOf: 7` (without the range it is admitted). A `$` before `|` is lost, so "yesterday" is
#           admitted by `^yes$|^no`. No error is raised. llguidance 1.9.1 has all of that right. Both let a key that is
#           written with an escape pass the schema of its property: `{"\u0061": "x"}` where `a` is an integer.
source "$(dirname "$0")/begin.sh"
from_pypi glrmask==0.5.0 llguidance==1.9.1 jsonschema==4.26.0 numpy==2.3.5
PYTHONPATH="$findings" python - <<'PY'
import json
from importlib.metadata import version

import glrmask
import jsonschema
from byte_tokens import Bytes
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

tokenizer = LLTokenizer(TokenizerWrapper(Bytes()))
vocabulary = glrmask.Vocab.from_id_to_bytes({i: bytes([i]) for i in range(256)})


def ours(schema, text):
    state = glrmask.Grammar.from_json_schema(schema).compile(vocabulary).start()
    return all(state.commit_token(byte) for byte in text.encode()) and state.is_accepting()


def theirs(schema, text):
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(json.dumps(schema)))
    return all(matcher.try_consume_tokens([byte]) == 1 for byte in text.encode()) and matcher.is_accepting()


half, seven = {"type": "number", "multipleOf": 0.5}, {"type": "integer", "multipleOf": 7}
words = {"type": "string", "pattern": "^yes$|^no"}
keys = {"type": "object", "properties": {"a": {"type": "integer"}}}
print(*(f"{name} {version(name)}" for name in ("glrmask", "llguidance", "jsonschema")))
for schema, text, expected in (
    (half, "0.5", (True, True, True)),
    (half, "-0.5", (False, True, True)),
    ({**half, "minimum": -10, "maximum": -1}, "-5.5", (False, True, True)),
    (seven, "-14", (True, True, True)),
    ({**seven, "minimum": -20, "maximum": 20}, "14", (True, True, True)),
    ({**seven, "minimum": -20, "maximum": 20}, "-14", (False, True, True)),
    (words, '"yes"', (True, True, True)),
    (words, '"nobody"', (True, True, True)),
    (words, '"yesterday"', (True, False, False)),
    (keys, '{"a": "x"}', (False, False, False)),
    (keys, r'{"\u0061": "x"}', (True, True, False)),
):
    seen = ours(schema, text), theirs(schema, text), jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
    print(f"{json.dumps(schema)} admits {text} (glrmask, llguidance, jsonschema):", seen)
    assert seen == expected, "changed"
PY
