#!/usr/bin/env bash
# formatron 0.5.0 (with kbnf 0.4.2), which holds a model's tokens to a JSON schema; its documentation names
# `required`, `enum`, `minItems` and `minimum` as supported and says that what it cannot express raises an error.
# Expected: what it admits is JSON that fits the schema, and a property that is not required may be left out.
# Seen:     such a property must be written, but its value may be left out: `{"a":}` is admitted and `{}` refused.
#           `minItems: 1` admits `[,1 2]` and refuses `[1,2]`. The words of an `enum` are taken for regular
#           expressions, so that "C++" and "why?" cannot be said, "axb" passes for "a.b", and a word with quotation
#           marks is written without backslashes. An object in an `enum` loses its keys. `minimum: 0` refuses 0.5. No
#           error is raised.
source "$(dirname "$0")/begin.sh"
from_pypi formatron==0.5.0 kbnf==0.4.2 pydantic==2.11.7 jsonschema==4.26.0
cat > admits.py <<'PY'
import json
from importlib.metadata import version

import jsonschema
import kbnf
from formatron.formatter import FormatterBuilder
from formatron.schemas.json_schema import create_schema

vocabulary = kbnf.Vocabulary({i: kbnf.Token(bytes([i])) for i in range(256)}, {i: chr(i) for i in range(256)})


def admits(schema, text):
    builder = FormatterBuilder()
    builder.append_str(f"{builder.json(create_schema(schema), capture_name='json')}\n")
    formatter = builder.build(vocabulary, lambda tokens: bytes(tokens).decode())
    for byte in f"{text}\n".encode():
        try:
            formatter.accept_token(byte)
        except ValueError:
            return False
    return formatter.is_completed()


def fits(schema, text):
    try:
        return jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
    except json.JSONDecodeError:
        return False


def array(**more):
    return {"type": "array", "items": {"type": "integer"}, **more}


integer, words = {"type": "integer"}, {"enum": ["a.b", "C++", "why?", 'say "hi"']}
cases = [  # what describes `a`, whether it is required, and texts with what the grammar should say of them
    (integer, True, {'{"a":1}': True, "{}": False}),
    (integer, False, {'{"a":1}': True, "{}": True, '{"a":}': False}),
    (array(), True, {'{"a":[1,2]}': True, '{"a":[1 2]}': False}),
    (array(minItems=1), True, {'{"a":[1]}': True, '{"a":[1,2]}': True, '{"a":[,1 2]}': False}),
    (array(minItems=1, maxItems=2), True, {'{"a":[1]}': True, '{"a":[1,2]}': True}),
    (words, True, {'{"a":"a.b"}': True, '{"a":"axb"}': False, '{"a":"C++"}': True, '{"a":"why?"}': True}),
    (words, True, {r'{"a":"say \"hi\""}': True, '{"a":"say "hi""}': False}),
    ({"enum": [{"k": 1}, 2]}, True, {'{"a":2}': True, '{"a":{"k":1}}': True, '{"a":{1}}': False}),
    ({"type": "number", "minimum": 0}, True, {'{"a":1.5}': True, '{"a":0.5}': True, '{"a":-1}': False}),
]
print("formatron", version("formatron"), "kbnf", version("kbnf"))
wrong = []
for about, required, texts in cases:
    schema = {"$id": "https://example.com/a", "$schema": "https://json-schema.org/draft/2020-12/schema"}
    schema.update(type="object", properties={"a": about}, required=["a"] if required else [])
    for text, expected in texts.items():
        assert fits(schema, text) == expected
        seen = admits(schema, text)
        print(f"a {'is' if required else 'may be'} {json.dumps(about)}: {text} fits {expected}, admitted {seen}")
        if seen != expected:
            wrong.append(text)
assert wrong == [
    "{}", '{"a":}', '{"a":[1]}', '{"a":[1,2]}', '{"a":[,1 2]}', '{"a":[1]}', '{"a":"axb"}', '{"a":"C++"}',
    '{"a":"why?"}', r'{"a":"say \"hi\""}', '{"a":"say "hi""}', '{"a":{"k":1}}', '{"a":{1}}', '{"a":0.5}',
], wrong
PY
python admits.py
