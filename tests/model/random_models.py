"""GGUF files with random weights and the bundled tokenizer, of architectures that no bundled model has: their
texts mean nothing, but depend on all that the model remembers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from benchmarks.gguf_file import GGUFSource
from server.settings import BUNDLED_MODEL

N_EMBD, N_LAYERS, N_FFN, N_HEADS = 64, 4, 128, 4
D_INNER, D_STATE, D_CONV, DT_RANK = 2 * N_EMBD, 8, 4, 4
N_CTX = 2048
WINDOW = 24  # tokens that layers with a sliding window see

Shapes = dict[str, tuple[int, ...]]

MAMBA: Shapes = {
    "ssm_in.weight": (2 * D_INNER, N_EMBD),
    "ssm_conv1d.weight": (D_INNER, D_CONV),
    "ssm_conv1d.bias": (D_INNER,),
    "ssm_x.weight": (DT_RANK + 2 * D_STATE, D_INNER),
    "ssm_dt.weight": (D_INNER, DT_RANK),
    "ssm_dt.bias": (D_INNER,),
    "ssm_a": (D_INNER, D_STATE),
    "ssm_d": (D_INNER,),
    "ssm_out.weight": (N_EMBD, D_INNER),
}
MAMBA_NORMS: Shapes = {
    "ssm_dt_norm.weight": (DT_RANK,),
    "ssm_b_norm.weight": (D_STATE,),
    "ssm_c_norm.weight": (D_STATE,),
}
ATTENTION: Shapes = {
    "attn_q.weight": (N_EMBD, N_EMBD),
    "attn_k.weight": (N_EMBD // 2, N_EMBD),
    "attn_v.weight": (N_EMBD // 2, N_EMBD),
    "attn_output.weight": (N_EMBD, N_EMBD),
}
FEED_FORWARD: Shapes = {
    "ffn_norm.weight": (N_EMBD,),
    "ffn_gate.weight": (N_FFN, N_EMBD),
    "ffn_up.weight": (N_FFN, N_EMBD),
    "ffn_down.weight": (N_EMBD, N_FFN),
}
NORM: Shapes = {"attn_norm.weight": (N_EMBD,)}
SSM = {
    "ssm.conv_kernel": D_CONV,
    "ssm.inner_size": D_INNER,
    "ssm.state_size": D_STATE,
    "ssm.time_step_rank": DT_RANK,
}


def mamba(path: Path) -> None:
    """Only layers with a state."""
    layers = [NORM | MAMBA] * N_LAYERS
    _write(path, "mamba", layers, SSM | {"feed_forward_length": 0, "attention.head_count": 0})


def jamba(path: Path) -> None:
    """Layers with a state and layers with attention in turn."""
    with_state = NORM | MAMBA | MAMBA_NORMS | FEED_FORWARD
    layers = [with_state, NORM | ATTENTION | FEED_FORWARD] * (N_LAYERS // 2)
    heads = {"attention.head_count": N_HEADS, "attention.head_count_kv": [0, N_HEADS // 2] * (N_LAYERS // 2)}
    _write(path, "jamba", layers, SSM | heads | {"feed_forward_length": N_FFN})


def gemma3(path: Path) -> None:
    """Layers with a sliding window of WINDOW tokens; each sixth attends to all tokens."""
    size = N_EMBD // N_HEADS
    norms: Shapes = {
        "attn_q_norm.weight": (size,),
        "attn_k_norm.weight": (size,),
        "post_attention_norm.weight": (N_EMBD,),
        "post_ffw_norm.weight": (N_EMBD,),
    }
    heads = {
        "attention.head_count": N_HEADS,
        "attention.head_count_kv": N_HEADS // 2,
        "attention.key_length": size,
        "attention.value_length": size,
        "attention.sliding_window": WINDOW,
        "feed_forward_length": N_FFN,
    }
    _write(path, "gemma3", [NORM | ATTENTION | norms | FEED_FORWARD] * 7, heads)


def _write(path: Path, kind: str, layers: list[Shapes], fields: Mapping[str, int | list[int]]) -> None:
    source = GGUFSource(BUNDLED_MODEL)
    writer = gguf.GGUFWriter(path, kind)
    with closing(writer):
        _copy_tokenizer(writer)
        common = {"block_count": len(layers), "context_length": N_CTX, "embedding_length": N_EMBD}
        for key, value in {**common, **fields}.items():
            if isinstance(value, list):
                writer.add_array(f"{kind}.{key}", value)
            else:
                writer.add_uint32(f"{kind}.{key}", value)
        writer.add_float32(f"{kind}.attention.layer_norm_rms_epsilon", 1e-5)
        rng = np.random.default_rng(11)
        shapes: Shapes = {"token_embd.weight": (source.shape("token_embd.weight")[0], N_EMBD)}
        shapes["output_norm.weight"] = (N_EMBD,)
        shapes |= {
            f"blk.{i}.{name}": shape for i, layer in enumerate(layers) for name, shape in layer.items()
        }
        for name, shape in shapes.items():
            writer.add_tensor(name, _values(name, shape, rng))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()


def _copy_tokenizer(writer: gguf.GGUFWriter) -> None:
    for key, field in gguf.GGUFReader(BUNDLED_MODEL).fields.items():
        if key.startswith("tokenizer."):
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], sub_type=inner)


def _values(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Random weights, scaled so that all layers count alike and states last for some tokens."""
    if name.endswith("ssm_a"):
        return -np.tile(np.linspace(0.05, 1.0, shape[-1], dtype=np.float32), (shape[0], 1))
    if "norm" in name or name.endswith("ssm_d"):
        return np.ones(shape, dtype=np.float32)
    scale = 1.0 if len(shape) == 1 else shape[-1] ** -0.5
    return rng.normal(0.0, scale, shape).astype(np.float32)
