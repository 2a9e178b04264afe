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

    llama.cpp's name, pixels of a side (0: it reads sounds), metadata below clip, tensors at its end, and
    those that it lacks.
    """

    type: str
    side: int
    fields: Mapping[str, Field]
    ends: Shapes
    without: tuple[str, ...] = ()

    @property
    def n_patches(self) -> int:
        return (self.side // PATCH) ** 2

    @property
    def what(self) -> str:
        return "vision" if self.side else "audio"


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
N_MEL, N_FRAMES, STACK = 20, 1500, 50  # pitches, frames of 30 s, frames that become one row
ULTRAVOX = ProjectorKind(  # Whisper's encoder: every 30 s begun become 30 rows
    "ultravox",
    0,
    {"audio.num_mel_bins": N_MEL, "audio.projector.stack_factor": STACK},
    {
        "a.conv1d.1.weight": (WIDTH, N_MEL, 3),
        "a.conv1d.1.bias": (WIDTH, 1),
        "a.conv1d.2.weight": (WIDTH, WIDTH, 3),
        "a.conv1d.2.bias": (WIDTH, 1),
        "mm.a.mlp.1.weight": (2 * N_INNER, WIDTH * STACK),
        "mm.a.mlp.2.weight": (N_EMBD, N_INNER),
        "mm.a.norm_pre.weight": (WIDTH * STACK,),
        "mm.a.norm_mid.weight": (N_INNER,),
    },
    without=tuple(f"a.blk.{i}.attn_k.bias" for i in range(N_BLOCKS)),
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


def write_projector(path: Path, *kinds: ProjectorKind, seed: int = 13, n_embd: int = N_EMBD) -> None:
    """Write a random projector for models of this width, deterministically; two kinds share a file."""
    fields: dict[str, Field] = {"use_gelu": True}
    shapes: Shapes = {}
    for kind in kinds:
        fields |= {f"has_{kind.what}_encoder": True, **kind.fields}
        fields[f"{kind.what}.projector_type" if len(kinds) > 1 else "projector_type"] = kind.type
        fields |= {f"{kind.what}.{name}": value for name, value in _fields_of(kind, n_embd).items()}
        shapes |= _shapes_of(kind, n_embd)
    rng = np.random.default_rng(seed)
    with closing(gguf.GGUFWriter(path, "clip")) as writer:
        for key, value in fields.items():
            add_field(writer, f"clip.{key}", value)
        for name, shape in shapes.items():
            writer.add_tensor(name, random_values(name, shape, rng))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()


def _fields_of(kind: ProjectorKind, n_embd: int) -> dict[str, Field]:
    found: dict[str, Field] = {
        "embedding_length": WIDTH,
        "feed_forward_length": N_INNER,
        "block_count": N_BLOCKS,
        "projection_dim": n_embd,
        "attention.head_count": 2,
        "attention.layer_norm_epsilon": 1e-5,
    }
    if kind.side:
        found |= {
            "image_size": kind.side,
            "patch_size": PATCH,
            "image_mean": [0.5] * 3,
            "image_std": [0.5] * 3,
        }
    return found


def _shapes_of(kind: ProjectorKind, n_embd: int) -> Shapes:
    ends = {name: tuple(n_embd if n == N_EMBD else n for n in shape) for name, shape in kind.ends.items()}
    letter = kind.what[0]
    first: Shapes = {"a.position_embd.weight": (N_FRAMES, WIDTH)}
    if kind.side:
        first = {
            "v.patch_embd.weight": (WIDTH, 3, PATCH, PATCH),
            "v.patch_embd.bias": (WIDTH,),
            "v.position_embd.weight": (kind.n_patches, WIDTH),
        }
    blocks = {f"{letter}.blk.{i}.{name}": shape for i in range(N_BLOCKS) for name, shape in _BLOCK.items()}
    shapes = {**first, **blocks, **ends}
    return {name: shape for name, shape in shapes.items() if name not in kind.without}


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
