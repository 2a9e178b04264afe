#!/usr/bin/env bash
# reminis 0.34.0, which puts a GGUF file into a database and makes a file of it again; its documentation says that the way there and
# back is lossless, and that this means the whole file, with every metadata field compared.
# Expected: the same keys, types and numbers, and tensors where `general.alignment` puts them, as the GGUF specification has it.
# Seen:     the key still says 64, but the tensors lie at multiples of 32, so that gguf 0.19.0, which reads the first file, looks for the
#           data behind its place and raises. A float64 becomes a float32, so 0.1 is another number; a uint64 becomes 32 bits wide,
#           and a number that needs more is converted but cannot be exported. The conversion prints no warning.
source "$(dirname "$0")/begin.sh"
from_pypi reminis==0.34.0 gguf==0.19.0 numpy==2.3.5
python - <<'PY'
import subprocess
from importlib.metadata import version

import gguf
import numpy

print(*(f"{name} {version(name)}" for name in ("reminis", "gguf")))


def there_and_back(name, **values):
    writer = gguf.GGUFWriter(f"{name}.gguf", "llama")
    if "alignment" in values:
        writer.add_custom_alignment(values["alignment"])
    for key in values.keys() - {"alignment"}:
        getattr(writer, f"add_{key}")(f"my.{key}", values[key])
    for tensor in ("token_embd", "output_norm", "output"):
        writer.add_tensor(f"{tensor}.weight", numpy.arange(8 if tensor == "output_norm" else 64, dtype=numpy.float32))
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        write()
    subprocess.run(["reminis", "convert", "-q", f"{name}.gguf", "-o", f"{name}.db"], check=True)
    if subprocess.run(["reminis", "export", "-q", f"{name}.db", "-o", f"{name}-2.gguf"], stderr=subprocess.DEVNULL).returncode:
        return "no export"
    try:
        fields = gguf.GGUFReader(f"{name}-2.gguf").fields
    except ValueError as error:
        return str(error)
    return {key: (fields[f"my.{key}"].types[0].name, fields[f"my.{key}"].contents()) for key in values if key != "alignment"}


for name, values, expected in (
    ("plain", {"uint32": 5, "float32": 0.5, "bool": True}, {"uint32": ("UINT32", 5), "float32": ("FLOAT32", 0.5), "bool": ("BOOL", True)}),
    ("aligned", {"alignment": 64, "string": "a" * 9}, "cannot reshape array of size 56 into shape (64,)"),
    ("float64", {"float64": 0.1}, {"float64": ("FLOAT32", float(numpy.float32(0.1)))}),
    ("uint64", {"uint64": 5}, {"uint64": ("UINT32", 5)}),
    ("large", {"uint64": 2**32}, "no export"),
):
    seen = there_and_back(name, **values)
    first = [tensor.data[-1] for tensor in gguf.GGUFReader(f"{name}.gguf").tensors]
    print(f"{values}: last numbers of the first file {first}, there and back {seen}")
    assert first == [63, 7, 63] and seen == expected, "changed"
PY
