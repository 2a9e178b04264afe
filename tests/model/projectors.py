"""Projectors with random weights, as small as llama.cpp takes them: what it looks for in their files."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np

from tests.model.kinds import (
    ATTENTION,
    FEED_FORWARD,
    HEADS,
    N_EMBD,
    N_HEADS,
    N_KV_HEADS,
    N_LAYERS,
    NORM,
    SIZE,
    Field,
    Kind,
    Shapes,
)
from tests.model.random_models import add_field, random_values

PATCH, WIDTH, N_INNER, N_BLOCKS = 14, 32, 48, 2
MERGE = 2  # patches along a side that become one row


class ProjectorKind(NamedTuple):
    """A kind of projector.

    llama.cpp's name, pixels of a side, metadata below clip, tensors at its end, and those that it lacks.
    """

    type: str
    side: int
    fields: Mapping[str, Field]
    ends: Shapes
    without: tuple[str, ...] = ()

    @property
    def n_patches(self) -> int:
        return (self.side // PATCH) ** 2


LLAVA = ProjectorKind(  # its rows see those before them, as tokens do
    "mlp",
    112,
    {},
    {
        "v.pre_ln.weight": (WIDTH,),
        "v.pre_ln.bias": (WIDTH,),
        "mm.0.weight": (N_INNER, WIDTH),
        "mm.0.bias": (N_INNER,),
        "mm.2.weight": (N_EMBD, N_INNER),
        "mm.2.bias": (N_EMBD,),
    },
)
GEMMA = ProjectorKind(  # its rows see each other
    "gemma3",
    112,
    {"vision.projector.scale_factor": MERGE},
    {
        "v.post_ln.weight": (WIDTH,),
        "v.post_ln.bias": (WIDTH,),
        "mm.input_projection.weight": (WIDTH, N_EMBD),
        "mm.soft_emb_norm.weight": (WIDTH,),
    },
)
IDEFICS = ProjectorKind(  # it cuts large pictures into tiles, with texts between them
    "idefics3",
    56,
    {"vision.projector.scale_factor": MERGE, "vision.preproc_image_size": 112},
    {
        "v.post_ln.weight": (WIDTH,),
        "v.post_ln.bias": (WIDTH,),
        "mm.model.fc.weight": (N_EMBD, WIDTH * MERGE**2),
    },
)
QWEN_VL = ProjectorKind(  # rows have positions in a grid of any size
    "qwen2vl_merger",
    56,
    {},
    {
        "v.patch_embd.weight.1": (WIDTH, 3, PATCH, PATCH),
        "v.post_ln.weight": (WIDTH,),
        "v.post_ln.bias": (WIDTH,),
        "mm.0.weight": (N_INNER, WIDTH * MERGE**2),
        "mm.0.bias": (N_INNER,),
        "mm.2.weight": (N_EMBD, N_INNER),
        "mm.2.bias": (N_EMBD,),
    },
    without=("v.patch_embd.bias", "v.position_embd.weight"),
)
PROJECTORS = {"llava": LLAVA, "gemma3": GEMMA, "idefics3": IDEFICS, "qwenvl": QWEN_VL}


QWEN2_VL = Kind(  # positions in sections
    "qwen2vl",
    [
        NORM
        | ATTENTION
        | FEED_FORWARD
        | {
            f"attn_{name}.bias": (n * SIZE,)
            for name, n in (("q", N_HEADS), ("k", N_KV_HEADS), ("v", N_KV_HEADS))
        }
    ]
    * N_LAYERS,
    HEADS | {"rope.dimension_sections": [3, 3, 2, 0]},
)


def write_projector(path: Path, kind: ProjectorKind, *, seed: int = 13, n_embd: int = N_EMBD) -> None:
    """Write a random projector for models of this width, deterministically."""
    ends = {name: tuple(n_embd if n == N_EMBD else n for n in shape) for name, shape in kind.ends.items()}
    fields: dict[str, Field] = {
        "has_vision_encoder": True,
        "projector_type": kind.type,
        "use_gelu": True,
        "vision.image_size": kind.side,
        "vision.patch_size": PATCH,
        "vision.embedding_length": WIDTH,
        "vision.feed_forward_length": N_INNER,
        "vision.block_count": N_BLOCKS,
        "vision.projection_dim": n_embd,
        "vision.attention.head_count": 2,
        "vision.attention.layer_norm_epsilon": 1e-5,
        "vision.image_mean": [0.5] * 3,
        "vision.image_std": [0.5] * 3,
        **kind.fields,
    }
    shapes: Shapes = {
        "v.patch_embd.weight": (WIDTH, 3, PATCH, PATCH),
        "v.patch_embd.bias": (WIDTH,),
        "v.position_embd.weight": (kind.n_patches, WIDTH),
        **{f"v.blk.{i}.{name}": shape for i in range(N_BLOCKS) for name, shape in _BLOCK.items()},
        **ends,
    }
    shapes = {name: shape for name, shape in shapes.items() if name not in kind.without}
    rng = np.random.default_rng(seed)
    with closing(gguf.GGUFWriter(path, "clip")) as writer:
        for key, value in fields.items():
            add_field(writer, f"clip.{key}", value)
        for name, shape in shapes.items():
            writer.add_tensor(name, random_values(name, shape, rng))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()


_BLOCK: Shapes = {
    f"{name}.{part}": shape if part == "weight" else shape[:1]
    for name, shape in {
        **dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_out"), (WIDTH, WIDTH)),
        **dict.fromkeys(("ln1", "ln2"), (WIDTH,)),
        "ffn_up": (N_INNER, WIDTH),
        "ffn_down": (WIDTH, N_INNER),
    }.items()
    for part in ("weight", "bias")
}
