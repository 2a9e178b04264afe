"""Write a model that costs as much as a larger one but says the same, or that has another tensor type.

`python -m benchmarks.inflate --model M --params 400M --type bf16 --out FILE`
`python -m benchmarks.inflate --model M --layers 24 --embd 2048 --ffn 5632 --heads 32 --kv-heads 8 …`
`python -m benchmarks.inflate --model M --type f32 --out FILE`: the same shape, converted

The first channels of every matrix are the model's own. Channels added to the residual stream are never
written (zero rows of attn_output, ffn_down; zero columns of the embedding), so they stay zero and their
readers may have any weights. Added heads and feed-forward channels are computed, then multiplied by zero;
added layers write nothing at all. The model's own heads stay with their key-value heads. If a key-value head
serves more heads than before, the added heads come after the model's own. RMSNorm takes its mean over all D
channels instead of d, so it divides by sqrt(d/D) times the former value. To undo this, its weights are scaled
by sqrt(d/D), its epsilon by d/D.

In exact arithmetic the logits are the model's own. Rounding to the output type may flip near-ties.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import os
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import gguf
import numpy as np
import numpy.typing as npt

from benchmarks import program
from benchmarks.gguf_file import KINDS, GGUFSource, Kind, PlannedTensor, Values, kind_for, write
from benchmarks.model_shape import Shape, choose, describe, parse_count
from server.errors import StartupError
from server.settings import BUNDLED_MODEL

Places: TypeAlias = npt.NDArray[np.int64]

KEY_LENGTH, VALUE_LENGTH = "attention.key_length", "attention.value_length"
ARCHITECTURES = ("llama", "mimo2")
NORMS = ("attn_norm", "ffn_norm")
# They read the residual stream: padding is random
READERS = ("attn_q", "attn_k", "attn_v", "attn_qkv", "ffn_gate", "ffn_up")
WRITERS = ("attn_output", "ffn_down")  # write it: padding is zero
BLOCK = ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm")  # of a prediction block
N_PARAMS, KIND = 400_000_000, "bf16"  # of the larger toy model that turns takes
NOISE_WEIGHTS = 1_000_003  # a prime: rows of a matrix do not begin alike


# -- the model ----------------------------------------


def bundled_400m() -> Path:
    """Return the file of the toy target inflated to 400M parameters in BF16; the first call makes it.

    It is kept in the user's cache directory. Raises StartupError, OSError.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "duo"
    digest = hashlib.sha256(BUNDLED_MODEL.read_bytes()).hexdigest()[:8]
    path = cache / f"{BUNDLED_MODEL.stem}-inflated-400m-{KIND}-{digest}.gguf"
    if not path.exists():
        shape = choose(read_shape(GGUFSource(BUNDLED_MODEL)), N_PARAMS)
        print(f"Inflating the bundled target, once, to {describe(shape, KIND)}: {path}", file=sys.stderr)
        inflate(BUNDLED_MODEL, path, shape, KIND)
    return path


def read_shape(source: GGUFSource) -> Shape:
    """Return the model's shape.

    Raises:
        StartupError: The model cannot be inflated: it is not dense, has biases, or its architecture is
            neither llama nor mimo2 as with_block.py makes it.
    """
    architecture = source.field("general.architecture")
    if architecture not in ARCHITECTURES:
        raise StartupError("only models of the architecture llama can be inflated")

    def of(key: str) -> Any:
        return source.field(f"{architecture}.{key}")

    n_embd = int(of("embedding_length"))
    n_heads = int(of("attention.head_count"))
    head_dim = int(of(KEY_LENGTH) or n_embd // n_heads)
    n_blocks = int(of("nextn_predict_layers") or 0)
    shape = Shape(
        n_layers=int(of("block_count")) - n_blocks,
        n_embd=n_embd,
        n_heads=n_heads,
        n_kv_heads=int(of("attention.head_count_kv") or n_heads),
        n_ffn=int(of("feed_forward_length")),
        n_vocab=source.shape("token_embd.weight")[0],
        head_size=0 if head_dim * n_heads == n_embd else head_dim,
        n_blocks=n_blocks,
    )
    known = {name for i in range(shape.n_layers + n_blocks) for name in _layer(i, shape)}
    known |= {"token_embd.weight", "output_norm.weight", "output.weight"}
    for name in source.names:
        if name not in known or source.shape(name) != _shape_of(_role(name), shape):
            raise StartupError(f"a model with such a {name} cannot be inflated")
    return shape


def inflate(model: Path, out: Path, shape: Shape, kind: str) -> None:
    """Write `model` in this larger shape with its matrices as `kind`. Deterministic. Raises StartupError."""
    source, wanted = GGUFSource(model), KINDS[kind]
    small = read_shape(source)
    if problem := small.misfit(shape) or _misfit_of_blocks(shape, wanted):
        raise StartupError(f"{model.name} cannot be inflated to {describe(shape, kind)}: {problem}")
    write(out, source, wanted, _plan(source, small, shape, wanted), _changes(source, small, shape))


def _misfit_of_blocks(shape: Shape, kind: Kind) -> str | None:
    """Return the problem if rows are not whole quantisation blocks of `kind`, else None."""
    block = gguf.GGML_QUANT_SIZES[kind][0]
    for what, width in (("embd", shape.n_embd), ("ffn", shape.n_ffn), ("heads x size", shape.n_q)):
        if width % block:
            return f"{what} must be a multiple of {block}, not {width}"
    return None


def _changes(source: GGUFSource, small: Shape, large: Shape) -> dict[str, Any]:
    architecture = source.field("general.architecture")
    epsilon = float(source.field(f"{architecture}.attention.layer_norm_rms_epsilon"))
    size = f"{large.n_params / 1e6:.0f}M" if large.n_params < 1e9 else f"{large.n_params / 1e9:.1f}B"
    sizes: dict[str, Any] = {
        "block_count": large.n_layers + large.n_blocks,
        "embedding_length": large.n_embd,
        "feed_forward_length": large.n_ffn,
        "attention.head_count": large.n_heads,
        "attention.head_count_kv": large.n_kv_heads,
        "attention.layer_norm_rms_epsilon": epsilon * small.n_embd / large.n_embd,
    }
    if large.head_size:
        sizes |= {KEY_LENGTH: large.head_dim, VALUE_LENGTH: large.head_dim}
        sizes["rope.dimension_count"] = large.head_dim
    if large.n_blocks:
        windows = [True] + [False] * (large.n_layers + large.n_blocks - 1)
        sizes |= {"expert_feed_forward_length": large.n_ffn, "attention.sliding_window_pattern": windows}
    return {
        "general.name": f"{source.field('general.name') or 'model'} inflated to the cost of {size}",
        "general.size_label": size,
        **{f"{architecture}.{key}": value for key, value in sizes.items()},
    }


def _layer(i: int, shape: Shape) -> list[str]:
    """Return the tensors' names of layer i. A block behind the layers has Q, K and V in one tensor."""
    is_block = i >= shape.n_layers
    heads, added = (("attn_qkv",), BLOCK) if is_block else (("attn_q", "attn_k", "attn_v"), ())
    return [f"blk.{i}.{role}.weight" for role in (*NORMS, *heads, "ffn_gate", "ffn_up", *WRITERS, *added)]


def _own(name: str, small: Shape, large: Shape) -> str | None:
    """Return the name of the model's tensor that becomes part of `name`; None if none does."""
    if not name.startswith("blk."):
        return name
    _, number, role = name.split(".", 2)
    i = int(number)
    if i >= large.n_layers:
        return f"blk.{i - large.n_layers + small.n_layers}.{role}"
    return name if i < small.n_layers else None


def _plan(source: GGUFSource, small: Shape, large: Shape, kind: Kind) -> Iterator[PlannedTensor]:
    names = [name for name in source.names if not name.startswith("blk.")]
    names += [name for i in range(large.n_layers + large.n_blocks) for name in _layer(i, large)]
    scale = (small.n_embd / large.n_embd) ** 0.5
    for name in names:
        shape = _shape_of(_role(name), large)
        places = tuple(_places(_role(name), axis, small, large) for axis in range(len(shape)))
        own = _own(name, small, large)
        values = functools.partial(_values, source, (name, own), shape, scale, places)
        yield PlannedTensor(name, shape, kind_for(shape, kind), values)


def _role(name: str) -> str:
    return re.sub(r"^blk\.\d+\.|\.weight$", "", name)


def _shape_of(role: str, s: Shape) -> tuple[int, ...]:
    shapes = {
        "token_embd": (s.n_vocab, s.n_embd),
        "output": (s.n_vocab, s.n_embd),
        "attn_q": (s.n_q, s.n_embd),
        "attn_k": (s.n_kv, s.n_embd),
        "attn_v": (s.n_kv, s.n_embd),
        "attn_qkv": (s.n_q + 2 * s.n_kv, s.n_embd),
        "nextn.eh_proj": (s.n_embd, 2 * s.n_embd),
        "attn_output": (s.n_embd, s.n_q),
        "ffn_gate": (s.n_ffn, s.n_embd),
        "ffn_up": (s.n_ffn, s.n_embd),
        "ffn_down": (s.n_embd, s.n_ffn),
    }
    return shapes.get(role, (s.n_embd,))


def _places(role: str, axis: int, small: Shape, large: Shape) -> Places:
    """Return the indices of the model's own rows (axis 0) or columns (axis 1) in the larger matrix.

    They are the first ones, except for query heads, which lie with their key-value heads.
    """
    if (role, axis) == ("attn_qkv", 0):
        parts: list[Places] = []
        start = 0
        for part in ("attn_q", "attn_k", "attn_v"):
            parts.append(start + _places(part, 0, small, large))
            start += _shape_of(part, large)[0]
        return np.concatenate(parts)
    if (role, axis) == ("nextn.eh_proj", 1):  # of the token's embedding, then of the hidden row
        halves: list[Places] = [np.arange(small.n_embd), large.n_embd + np.arange(small.n_embd)]
        return np.concatenate(halves)
    own, new = _shape_of(role, small)[axis], _shape_of(role, large)[axis]
    if (role, axis) not in (("attn_q", 0), ("attn_output", 1)) or large.group == small.group:
        return np.arange(min(own, new))
    heads = np.arange(small.n_heads)
    moved = heads // small.group * large.group + heads % small.group
    return (moved[:, None] * small.head_dim + np.arange(small.head_dim)).ravel()


def _values(
    source: GGUFSource,
    names: tuple[str, str | None],
    shape: tuple[int, ...],
    scale: float,
    places: tuple[Places, ...],
) -> Values:
    """Return padding with the model's own values at their places.

    Args:
        source: The model.
        names: The tensor's name in the new file, and in the model (None if the model lacks it).
        shape: Rows and columns of the new tensor.
        scale: Factor for own values of norms.
        places: Indices of own values, by axis.
    """
    name, of = names
    role = _role(name)
    if len(shape) == 1:
        padded = np.full(shape, scale, dtype=np.float32)
    elif role in READERS:
        padded = _noise(name, shape)
    else:
        padded = np.zeros(shape, dtype=np.float32)
    if of is not None and of in source.names:
        own = source.values(of)
        padded[np.ix_(*places)] = own * scale if len(shape) == 1 else own
    return padded


def _noise(name: str, shape: tuple[int, ...]) -> Values:
    """Return uniform random weights of variance 1/n for n inputs, so that outputs keep the inputs' scale.

    The weights repeat after NOISE_WEIGHTS, since drawing each would take longer than writing it. The tensor's
    name decides where they begin: each run writes the same file, and no two tensors are alike.
    """
    pattern = _pattern()
    start = zlib.crc32(name.encode()) % len(pattern)
    values = np.resize(np.roll(pattern, -start), shape)
    values *= np.float32((12 / shape[-1]) ** 0.5)
    return values


@functools.cache
def _pattern() -> Values:
    rng = np.random.default_rng(NOISE_WEIGHTS)
    return rng.random(NOISE_WEIGHTS, dtype=np.float32) - np.float32(0.5)


def convert(model: Path, out: Path, kind: str = "f32") -> None:
    """Write any `model` with its matrices as `kind`; its metadata stays, except the file type."""
    source, wanted = GGUFSource(model), KINDS[kind]
    planned = [
        PlannedTensor(name, shape, kind_for(shape, wanted), functools.partial(source.values, name))
        for name in source.names
        for shape in [source.shape(name)]
    ]
    write(out, source, wanted, planned, {})


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.inflate",
        description="The same text at the cost of a larger llama model; without sizes, in another type.",
    )
    add = parser.add_argument
    add("--model", type=Path, required=True, help="the GGUF file to inflate")
    add("--params", type=parse_count, help="parameters wanted, such as 400M: chooses a shape")
    add("--layers", dest="n_layers", type=int, help="or each size by itself: layers")
    add("--embd", dest="n_embd", type=int, help="channels of the residual stream")
    add("--ffn", dest="n_ffn", type=int, help="channels of the feed-forward layers")
    add("--heads", dest="n_heads", type=int, help="heads, of the size they have")
    add("--kv-heads", dest="n_kv_heads", type=int, help="key-value heads")
    add("--type", choices=KINDS, default="bf16", help="type of the matrices")
    add("--out", type=Path, required=True, help="the GGUF file to write")
    args = parser.parse_args(argv)
    sizes = {name: size for name, size in vars(args).items() if name.startswith("n_") and size}
    if sizes and args.params:
        parser.error("give --params, or some of --layers, --embd, --ffn, --heads, --kv-heads")

    def work() -> None:
        if sizes or args.params:
            small = read_shape(GGUFSource(args.model))
            shape = choose(small, args.params) if args.params else small.enlarged(**sizes)
            print(describe(shape, args.type), flush=True)
            inflate(args.model, args.out, shape, args.type)
        else:
            convert(args.model, args.out, args.type)
        print(f"wrote {args.out} ({args.out.stat().st_size / 1e6:,.0f} MB)")

    return program.status_of("inflate", work)


if __name__ == "__main__":
    sys.exit(main())
