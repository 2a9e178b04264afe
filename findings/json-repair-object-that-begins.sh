#!/usr/bin/env bash
# json-repair 0.64.6, which reads JSON that a model has not finished, with `stream_stable=True`, its option for streams.
# Expected: of a text that has begun with `{`, an object: at first an empty one, then with what is there.
# Seen:     while a key is being written, the object is a list with this key in it: `{"path` is ["path"], and in
#           `[{"name": "a"}, {"na` the second object is one. A reader of streamed arguments that asks for a key fails now and
#           then, by where the chunks end. jiter 0.19.0, which the OpenAI and Anthropic SDKs use, gives an object throughout.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" --quiet --disable-pip-version-check install json-repair==0.64.6 jiter==0.19.0
"$dir/venv/bin/python" - <<'PY'
from importlib.metadata import version

import jiter
import json_repair

seen = {}
for text in ('{"', '{"path', '{"path"', '{"path":', '{"path": "a', '{"path": "a", "te', '[{"name": "a"}, {"na'):
    seen[text] = json_repair.loads(text, stream_stable=True)
    other = jiter.from_json(text.encode(), partial_mode="trailing-strings")
    print(f"{text}: json-repair {version('json-repair')} {seen[text]}, jiter {version('jiter')} {other}")
    assert isinstance(other[-1] if text[0] == "[" else other, dict), other
assert seen['{"'] == {} and seen['{"path": "a'] == {"path": "a"} == seen['{"path": "a", "te'], seen
assert seen['{"path'] == seen['{"path"'] == ["path"], "changed"
assert seen['[{"name": "a"}, {"na'] == [{"name": "a"}, ["na"]], "changed"
PY
