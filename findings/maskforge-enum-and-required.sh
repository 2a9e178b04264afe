#!/usr/bin/env bash
# maskforge 0.1.1, which holds a model's tokens to a JSON schema; its table of keywords has `enum`, `const`, `required` and
# `additionalProperties` as supported in full, and says that what is unsupported raises and is never dropped.
# Expected: a key of `required` that `properties` does not name has the schema of `additionalProperties`; `enum` and `const` hold
#           together with what stands beside them; an object of an `enum` may be written in the order in which the schema has it.
# Seen:     such a required key may have any value, and may be written even where `additionalProperties` is false. `minimum`,
#           `multipleOf`, `minLength`, `pattern`, `minItems` and `required` beside `enum` or `const` are dropped (in an `allOf`
#           they hold). An object of an `enum` can only be written with its keys in alphabetical order. No error is raised.
source "$(dirname "$0")/begin.sh"
from_pypi maskforge==0.1.1 jsonschema==4.26.0
python - <<'PY'
import json
from importlib.metadata import version

import jsonschema
import maskforge

END = 256
vocabulary = maskforge.Vocabulary.from_id_ordered_tokens([*(bytes([i]) for i in range(END)), None], eos_token_id=END)


def admits(schema, text):
    bound = maskforge.Compiler().compile(schema).bind(vocabulary)
    session, mask = bound.start_session(), bytearray(4 * bound.mask_word_count)

    def allowed(token):
        session.write_mask(mask)
        return bool(mask[token // 8] >> token % 8 & 1)

    for byte in text.encode():
        if not allowed(byte):
            return False
        session.advance(byte)
    return allowed(END)


integer = {"type": "integer"}
wrong = (
    ({"type": "object", "additionalProperties": integer, "required": ["a"]}, '{"a":"x"}'),
    ({"type": "object", "additionalProperties": False, "required": ["a"]}, '{"a":"x"}'),
    ({"enum": [1, 2], "maximum": 1}, "2"),
    ({"const": 4, "multipleOf": 3}, "4"),
    ({"enum": ["a", "abc"], "minLength": 2}, '"a"'),
    ({"enum": ["a", "abc"], "pattern": "c$"}, '"a"'),
    ({"enum": [[1], [1, 2]], "minItems": 2}, "[1]"),
    ({"enum": [{"a": 1}, {"b": 1}], "required": ["a"]}, '{"b":1}'),
    ({"enum": [{"type": "circle", "r": 1}]}, '{"type":"circle","r":1}'),
)
right = (
    ({"type": "object", "additionalProperties": integer, "required": ["a"]}, '{"a":1}'),
    ({"type": "object", "additionalProperties": integer, "required": ["a"]}, '{"a":1,"b":"x"}'),
    ({"type": "object", "additionalProperties": integer}, '{"a":"x"}'),
    ({"allOf": [{"enum": [1, 2]}, {"maximum": 1}]}, "2"),
    ({"enum": [{"type": "circle", "r": 1}]}, '{"r":1,"type":"circle"}'),
)
print("maskforge", version("maskforge"), "jsonschema", version("jsonschema"))
for cases, agree in ((wrong, False), (right, True)):
    for schema, text in cases:
        seen, valid = admits(schema, text), jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
        print(f"{json.dumps(schema)} admits {text}: maskforge {seen}, jsonschema {valid}")
        assert (seen == valid) is agree, "changed"
PY
