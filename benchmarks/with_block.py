"""Write the bundled target with the prediction block (MTP) that was trained for it, as one GGUF file.

`python -m benchmarks.with_block --out FILE` writes a model of architecture mimo2, which has such blocks
and otherwise computes what the target's own architecture does, up to rounding. `benchmarks.inflate`
enlarges the model. With `--blocks 3` the file has the block three times, once for each depth: guesses are
those of one block, at the cost of three.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from benchmarks import program
from server.settings import BUNDLED_MODEL

BLOCK = Path(__file__).parent / "models" / "duo-tiny-mtp-q8_0.gguf"
ARCHITECTURE = "mimo2"
_OWN = ("general.architecture", "general.file_type", "GGUF.", "llama.")  # keys that are not the target's


def join(target: Path, block: Path, out: Path, n_blocks: int = 1) -> None:
    """Write the target, of architecture llama, with the block's tensors behind its layers, n_blocks times."""
    source, added = gguf.GGUFReader(target), gguf.GGUFReader(block)
    writer = gguf.GGUFWriter(out, ARCHITECTURE)
    for name, field in source.fields.items():
        if not name.startswith(_OWN):
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)
    _describe(writer, lambda key: source.fields[f"llama.{key}"].contents(), n_blocks)
    n_heads, n_kv_heads = (
        int(source.fields[f"llama.attention.{key}"].contents()) for key in ("head_count", "head_count_kv")
    )
    for tensor in source.tensors:
        rows: npt.NDArray[Any] = np.array(tensor.data)
        if ".attn_q." in tensor.name:
            rows = _in_halves(rows, n_heads)
        if ".attn_k." in tensor.name:
            rows = _in_halves(rows, n_kv_heads)
        writer.add_tensor(tensor.name, rows, raw_dtype=tensor.tensor_type)
        if tensor.name == "token_embd.weight":  # which is the target's head too
            writer.add_tensor("output.weight", rows, raw_dtype=tensor.tensor_type)
    for tensor in added.tensors:
        _, first, role = tensor.name.split(".", 2)
        for i in range(n_blocks):
            name = f"blk.{int(first) + i}.{role}"
            writer.add_tensor(name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: gguf.GGUFWriter, of: Callable[[str], Any], n_blocks: int) -> None:
    """Write the target's sizes under the keys of the other architecture, whose window exceeds the context."""
    n_layers, n_context = int(of("block_count")), int(of("context_length"))
    sizes = {
        "context_length": n_context,
        "embedding_length": int(of("embedding_length")),
        "block_count": n_layers + n_blocks,
        "nextn_predict_layers": n_blocks,
        "feed_forward_length": int(of("feed_forward_length")),
        "expert_feed_forward_length": int(of("feed_forward_length")),
        "expert_count": 0,
        "expert_used_count": 0,
        "attention.head_count": int(of("attention.head_count")),
        "attention.head_count_kv": int(of("attention.head_count_kv")),
        "attention.sliding_window": 8 * n_context,
        "rope.dimension_count": int(of("rope.dimension_count")),
        "vocab_size": int(of("vocab_size")),
    }
    for key, value in sizes.items():
        writer.add_uint32(f"{ARCHITECTURE}.{key}", value)
    for key in ("rope.freq_base", "rope.freq_base_swa"):
        writer.add_float32(f"{ARCHITECTURE}.{key}", float(of("rope.freq_base")))
    epsilon = float(of("attention.layer_norm_rms_epsilon"))
    writer.add_float32(f"{ARCHITECTURE}.attention.layer_norm_rms_epsilon", epsilon)
    windows = [True] + [False] * (
        n_layers + n_blocks - 1
    )  # llama.cpp makes both kinds of cache only if there are both
    writer.add_array(f"{ARCHITECTURE}.attention.sliding_window_pattern", windows)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)


def _in_halves(rows: npt.NDArray[Any], n_heads: int) -> npt.NDArray[Any]:
    """Return rows of Q or K with neighbouring rotated channels reordered to halves of each head."""
    n = rows.shape[0] // n_heads
    halves = [np.arange(first, n, 2, dtype=np.int64) for first in (0, 1)]
    return rows.reshape(n_heads, n, -1)[:, np.concatenate(halves)].reshape(rows.shape)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.with_block", description="The bundled target with its prediction block."
    )
    parser.add_argument("--out", type=Path, required=True, help="the GGUF file to write")
    parser.add_argument("--blocks", type=int, default=1, help="copies of it, one for each depth")
    args = parser.parse_args(argv)

    def work() -> None:
        join(BUNDLED_MODEL, BLOCK, args.out, args.blocks)
        print(f"wrote {args.out} ({args.out.stat().st_size / 1e6:,.0f} MB)")

    return program.status_of("with_block", work)


if __name__ == "__main__":
    sys.exit(main())
