"""What a tail of states adds to the steps of a hybrid model: `python -m benchmarks.tails [--size 9B]`.

Where a sequence cannot be trimmed, llama.cpp keeps the states after a decode's last tokens if it is asked to
(docs/adr/0016). Contexts with tails of several lengths share the random weights of one model and decode in
turn, so that a slow minute of the machine slows all of them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import gguf
import numpy as np
import numpy.typing as npt

from benchmarks import program, report
from benchmarks.gguf_file import GGUFSource
from server.errors import StartupError
from server.llama.backend import Batch
from server.llama.context import LlamaContext
from server.llama.library import LoadedModel, context_params
from server.llama.options import LlamaOptions, Weights
from server.settings import BUNDLED_MODEL

ARCHITECTURE = "qwen35"
EVERY = 4  # layers, the last of which has attention; the others have a state
CONTEXT = 64  # tokens before the timed steps
SETTLE = 4  # steps of a width before the timed ones: graphs are recorded, caches filled
BLOCK, BLOCK_BYTES = 32, 34  # weights of a block of Q8_0, and its bytes: a scale and the weights


@dataclass(frozen=True, slots=True)
class HybridShape:
    """Of a model with delta nets. n_heads, n_kv: of attention, of `size` channels each. n_values: heads of a
    delta net, of n_state channels each; n_groups of them have keys of their own."""

    n_layers: int
    n_embd: int
    n_ffn: int
    n_heads: int
    n_kv: int
    n_values: int
    n_groups: int = 16
    size: int = 256
    n_state: int = 128
    n_conv: int = 4

    def matrices(self, layer: int) -> Iterator[tuple[str, int, int]]:
        """Name, rows and columns of each matrix of a layer."""
        n, values = self.n_embd, self.n_values * self.n_state
        if layer % EVERY == EVERY - 1:
            yield "attn_q", 2 * self.n_heads * self.size, n
            yield "attn_k", self.n_kv * self.size, n
            yield "attn_v", self.n_kv * self.size, n
            yield "attn_output", n, self.n_heads * self.size
        else:
            yield "attn_qkv", values + 2 * self.n_groups * self.n_state, n
            yield "attn_gate", values, n
            yield "ssm_beta", self.n_values, n
            yield "ssm_alpha", self.n_values, n
            yield "ssm_out", n, values
        yield "ffn_gate", self.n_ffn, n
        yield "ffn_up", self.n_ffn, n
        yield "ffn_down", n, self.n_ffn

    def others(self, layer: int) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
        """Name and values of each tensor of a layer that is no matrix."""
        ones = [("attn_norm.weight", self.n_embd), ("post_attention_norm.weight", self.n_embd)]
        if layer % EVERY == EVERY - 1:
            ones += [("attn_q_norm.weight", self.size), ("attn_k_norm.weight", self.size)]
        else:
            ones += [("ssm_norm.weight", self.n_state), ("ssm_dt.bias", self.n_values)]
            yield "ssm_a", -np.linspace(0.05, 1.0, self.n_values, dtype=np.float32)
            n_convolved = self.n_values * self.n_state + 2 * self.n_groups * self.n_state
            yield "ssm_conv1d.weight", np.full((n_convolved, self.n_conv), 0.5, dtype=np.float32)
        for name, n in ones:
            yield name, np.ones(n, dtype=np.float32)

    def fields(self, n_layers: int) -> dict[str, int]:
        return {
            "block_count": n_layers,
            "context_length": 4096,
            "embedding_length": self.n_embd,
            "feed_forward_length": self.n_ffn,
            "attention.head_count": self.n_heads,
            "attention.head_count_kv": self.n_kv,
            "attention.key_length": self.size,
            "attention.value_length": self.size,
            "ssm.conv_kernel": self.n_conv,
            "ssm.inner_size": self.n_values * self.n_state,
            "ssm.state_size": self.n_state,
            "ssm.time_step_rank": self.n_values,
            "ssm.group_count": self.n_groups,
        }


# Of Qwen 3.5, with the vocabulary of the bundled model
SIZES = {
    "0.8B": HybridShape(24, 1024, 3584, n_heads=8, n_kv=2, n_values=16),
    "9B": HybridShape(32, 4096, 12288, n_heads=16, n_kv=4, n_values=32),
}


def write(path: Path, shape: HybridShape) -> None:
    """A model of this shape at Q8_0. Its texts mean nothing; all layers share their weights' bytes."""
    source, rng = GGUFSource(BUNDLED_MODEL), np.random.default_rng(1)
    n_vocab = source.shape("token_embd.weight")[0]
    writer = gguf.GGUFWriter(path, ARCHITECTURE)
    with closing(writer):
        source.copy_metadata(writer, {})
        for key, value in shape.fields(shape.n_layers).items():
            writer.add_uint32(f"{ARCHITECTURE}.{key}", value)
        writer.add_float32(f"{ARCHITECTURE}.attention.layer_norm_rms_epsilon", 1e-5)
        writer.add_array(f"{ARCHITECTURE}.rope.dimension_sections", [11, 11, 10, 0])
        made: dict[tuple[int, int], npt.NDArray[np.uint8]] = {}

        def add(name: str, rows: int, columns: int) -> None:
            if (rows, columns) not in made:
                made[rows, columns] = _blocks(rows, columns, rng)
            writer.add_tensor(name, made[rows, columns], raw_dtype=gguf.GGMLQuantizationType.Q8_0)

        add("token_embd.weight", n_vocab, shape.n_embd)
        writer.add_tensor("output_norm.weight", np.ones(shape.n_embd, dtype=np.float32))
        for layer in range(shape.n_layers):
            for name, rows, columns in shape.matrices(layer):
                add(f"blk.{layer}.{name}.weight", rows, columns)
            for name, values in shape.others(layer):
                writer.add_tensor(f"blk.{layer}.{name}", values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()


def _blocks(rows: int, columns: int, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Random weights at Q8_0. A row of channels keeps its variance when it is multiplied by them."""
    blocks = rng.integers(0, 256, (rows * columns // BLOCK, BLOCK_BYTES), dtype=np.uint8)
    scale = np.array([columns**-0.5 / 74], dtype=np.float16)  # 74: of bytes evenly distributed
    blocks[:, :2] = scale.view(np.uint8)
    return blocks.reshape(rows, columns // BLOCK * BLOCK_BYTES)


class TimedContext:
    """A context whose sequence grows by each step. n_tail: states that it keeps."""

    def __init__(self, model: LoadedModel, options: LlamaOptions, n_tail: int) -> None:
        """Raises StartupError."""
        self.n_tail, self._context = n_tail, LlamaContext()
        handle = model.context(context_params(options))
        if not handle:
            raise StartupError(f"llama.cpp makes no context with a tail of {n_tail}")
        self._context.attach(model, handle, n_streams=0, overlaps=False)
        if self._context.n_tail != n_tail:
            self.close()
            raise StartupError(f"llama.cpp keeps {self._context.n_tail} states, not {n_tail}")

    def step_s(self, width: int) -> float:
        """Seconds of a step of this many rows, of which all but the first are taken back, as far as the tail
        goes. Raises BackendError."""
        batch, length = Batch(), self.length
        first = length % CONTEXT + 1  # which tokens they are does not matter
        batch.extend(0, length, range(first, first + width), width)
        began = time.perf_counter()
        self._context.decode(batch)
        if n_wrong := min(self.n_tail, width - 1):
            self._context.trim(0, length + width - n_wrong)
        return time.perf_counter() - began

    @property
    def length(self) -> int:
        return self._context.length(0)

    def close(self) -> None:
        self._context.close()


def measure(args: argparse.Namespace) -> program.Result:
    """Raises DuoError."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        path = Path(directory) / "hybrid.gguf"
        write(path, SIZES[args.size])
        model = stack.enter_context(closing(LoadedModel(path, Weights())))
        n_cells = CONTEXT + (args.rounds + SETTLE) * sum(args.widths)
        n_batch = max(CONTEXT, *args.widths)
        contexts: list[TimedContext] = []
        for n_tail in (0, *args.tails):
            options = LlamaOptions(path, n_cells, 1, n_batch=n_batch, n_threads=args.threads, n_tail=n_tail)
            contexts.append(stack.enter_context(closing(TimedContext(model, options, n_tail))))
            contexts[-1].step_s(CONTEXT)
        rows = [_row(width, contexts, args.rounds) for width in args.widths]
        what = f"{args.size}: {model.n_params / 1e9:.1f}B random weights at Q8_0, {args.threads} threads. "
    what += f"Milliseconds without a tail, medians of {args.rounds}; with one by without, medians of pairs."
    heads = ["rows", "no tail", *(f"a tail of {n}" for n in args.tails)]
    return "what a tail of states adds to a step", [what, report.table(heads, rows, n_words=0)]


def _row(width: int, contexts: Sequence[TimedContext], n_rounds: int) -> list[str]:
    """contexts: the first has no tail. They take turns, each time with another one first."""
    rounds = list[list[float]]()
    for i in range(SETTLE + n_rounds):
        first = i % len(contexts)
        taken = [context.step_s(width) for context in (*contexts[first:], *contexts[:first])]
        rounds.append(taken[-first:] + taken[:-first] if first else taken)
    timed = list(zip(*rounds[SETTLE:], strict=True))  # by context
    ratios = [median(s / plain for s, plain in zip(each, timed[0], strict=True)) for each in timed[1:]]
    return [str(width), f"{1e3 * median(timed[0]):.2f}", *(f"{ratio:.3f}" for ratio in ratios)]


def _parser() -> argparse.ArgumentParser:
    what = "What a tail of states adds to the steps of a hybrid model."
    parser = program.make_parser("tails", what, "threads", "rounds", rounds=40)
    add = parser.add_argument
    add("--size", choices=SIZES, default="0.8B", help="of the model, in the shape of a Qwen 3.5")
    add("--tails", type=program.numbers, default=[1, 2, 3, 4, 8], help="states that are kept, such as 2,4")
    add("--widths", type=program.numbers, default=[1, 2, 4, 8], help="rows of a step, such as 1,4,8")
    return parser


main = program.main(_parser, measure)

if __name__ == "__main__":
    sys.exit(main())
