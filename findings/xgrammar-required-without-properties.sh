#!/usr/bin/env bash
# xgrammar 0.2.9, the grammar compiler of vLLM and SGLang.
# Expected: `{"type": "object", "required": ["z"]}` admits `{"z":1}` and refuses `{}`.
# Seen:     the other way round, in its default (strict) mode: `{}` is all that it admits. A name in `required` that
#           `properties` does not describe is dropped without a warning; with `strict_mode=False` such a key may be written
#           or left out.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
pip="$dir/venv/bin/pip --quiet --disable-pip-version-check install"
$pip apache-tvm-ffi==0.1.15.post2 numpy==2.3.5 pydantic==2.14.4
$pip --no-deps xgrammar==0.2.9
mkdir "$dir/stub"
# Its Python half imports PyTorch and Transformers for bit masks and tokenizers, which a grammar alone does not use: empty
# modules stand for them, so that 3 GB need not be downloaded. The grammar is compiled and run by xgrammar's own library.
for module in torch transformers; do
    cat > "$dir/stub/$module.py" <<'PY'
class Nothing:
    def __init__(self, *args, **options): ...

    def __getattr__(self, name):
        return Nothing


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Nothing
PY
done
"$dir/venv/bin/python" - "$dir/stub" <<'PY'
import json
import sys
from importlib.metadata import version

import tvm_ffi  # before the stub can be found: it uses PyTorch where there is one

sys.path.append(sys.argv[1])
import xgrammar
from xgrammar.testing import _is_grammar_accept_string


def admits(schema, text, **options):
    return _is_grammar_accept_string(xgrammar.Grammar.from_json_schema(json.dumps(schema), **options), text)


print("xgrammar", version("xgrammar"))
for schema in (
    {"type": "object", "required": ["z"]},
    {"type": "object", "required": ["a", "z"], "properties": {"a": {"type": "integer"}}},
):
    without, with_z = ('{"a":1}', '{"a":1,"z":2}') if "properties" in schema else ("{}", '{"z":2}')
    strict = admits(schema, without), admits(schema, with_z)
    loose = admits(schema, without, strict_mode=False), admits(schema, with_z, strict_mode=False)
    print(f"{json.dumps(schema)}: {without} and {with_z} admitted: {strict}; with strict_mode=False: {loose}")
    assert strict == (True, False), "changed"
    assert loose == (True, True), "changed"
PY
