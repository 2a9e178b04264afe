#!/usr/bin/env bash
# gguf 0.19.0, the GGUF project's own writer and reader for Python.
# Expected: what is written is read back: a list of lists (the format lets an array hold arrays), an empty list, an empty text.
# Seen:     [[1, 2], [3, 4, 5]] is read as [1, 2, 3, 4, 5], though the file has it right: gguf-inspect 0.1.0, a reader of another
#           author, reads two lists. Empty lists and texts are not written at all, without a word, so a key that was set is
#           absent to every reader.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" --quiet --disable-pip-version-check install gguf==0.19.0 gguf-inspect==0.1.0
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
from importlib.metadata import version

import gguf
import numpy
from gguf_inspect import parse_gguf

VALUES = {"lists": [[1, 2], [3, 4, 5]], "list": [1, 2], "empty list": [], "empty text": "", "text": "a"}
writer = gguf.GGUFWriter("small.gguf", "llama")
for name, value in VALUES.items():
    (writer.add_string if isinstance(value, str) else writer.add_array)(f"my.{name}", value)
writer.add_tensor("token_embd.weight", numpy.zeros((2, 32), numpy.float32))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()


def plain(value):
    value = getattr(value, "value", value)
    return [plain(one) for one in value] if isinstance(value, list) else value


own, other = gguf.GGUFReader("small.gguf").fields, parse_gguf("small.gguf").metadata
seen = {}
for name, value in VALUES.items():
    key = f"my.{name}"
    seen[name] = own[key].contents() if key in own else "absent", plain(other[key]) if key in other else "absent"
    print(f"{name} {value!r}: gguf {version('gguf')} {seen[name][0]!r}, gguf-inspect {version('gguf-inspect')} {seen[name][1]!r}")
assert seen["list"] == ([1, 2], [1, 2]) and seen["text"] == ("a", "a"), seen
assert seen["lists"] == ([1, 2, 3, 4, 5], [[1, 2], [3, 4, 5]]), "changed"
assert seen["empty list"] == seen["empty text"] == ("absent", "absent"), "changed"
PY
