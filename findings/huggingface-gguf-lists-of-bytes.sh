#!/usr/bin/env bash
# @huggingface/gguf 0.4.6, which reads GGUF files and, with `serializeGgufMetadata` and `buildGgufHeader`, writes a
# header anew so that metadata can be edited.
# Expected: metadata that it has read, with their types (`typedMetadata: true`), can be written again; without a
#           change it is the same bytes.
# Seen:     a list of unsigned bytes raises "Array type requires subType to be specified", though its type was read
#           and is there: it is type number 0, which is taken for none. The tokenizers of T5, XLM-RoBERTa and BGE-M3
#           have such a list, `tokenizer.ggml.precompiled_charsmap` (here written by the GGUF project's gguf 0.19.0
#           with its own function for it), so that not even the name of these models can be edited. Signed bytes and
#           all other types come back as they were.
source "$(dirname "$0")/begin.sh"
from_pypi gguf==0.19.0 numpy==2.3.5
from_npm @huggingface/gguf@0.4.6
python - <<'PY'
import gguf
import numpy as np

kinds = gguf.GGUFValueType
for name in ("plain", "charsmap"):
    writer = gguf.GGUFWriter(f"{name}.gguf", "t5")
    writer.add_name("Old name")
    writer.add_key_value("list.signed", [1, -1], kinds.ARRAY, kinds.INT8)
    writer.add_key_value("list.wide", [1, 65535], kinds.ARRAY, kinds.UINT16)
    writer.add_key_value("list.truth", [True, False], kinds.ARRAY, kinds.BOOL)
    writer.add_token_list(["<pad>", "</s>", "\u2581a"])
    if name == "charsmap":
        writer.add_precompiled_charsmap(bytes([0, 2, 255]))
    writer.add_tensor("output.weight", np.arange(8, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
PY
cat > edit.mjs <<'JS'
import { readFileSync } from "node:fs";
import { buildGgufHeader, gguf, serializeGgufMetadata } from "@huggingface/gguf";
const seen = {};
for (const name of ["plain", "charsmap"]) {
  const file = readFileSync(`${name}.gguf`);
  const options = { allowLocalFile: true, typedMetadata: true };
  const { typedMetadata, tensorInfoByteRange } = await gguf(`${name}.gguf`, options);
  try {
    const [written, read] = [Buffer.from(serializeGgufMetadata(typedMetadata)), file].map((bytes) =>
      bytes.subarray(0, tensorInfoByteRange[0]));
    const same = written.equals(read);
    typedMetadata["general.name"].value = "New name";
    const header = await buildGgufHeader(new Blob([file]), typedMetadata, { littleEndian: true, tensorInfoByteRange });
    seen[name] = `same bytes ${same}, new name ${(await header.text()).includes("New name")}`;
  } catch (error) {
    seen[name] = error.message;
  }
  const list = JSON.stringify(typedMetadata["tokenizer.ggml.precompiled_charsmap"]);
  console.log(`@huggingface/gguf 0.4.6, ${name}.gguf, charsmap ${list}: ${seen[name]}`);
}
if (seen.plain !== "same bytes true, new name true") throw new Error("changed");
if (seen.charsmap !== "Array type requires subType to be specified") throw new Error("changed");
JS
node edit.mjs
