"""GGUF files with random weights and the bundled tokenizer, of architectures that no bundled model has.

Their texts mean nothing, but depend on all that the model remembers.
"""

from __future__ import annotations

import functools
from contextlib import closing
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from server.settings import BUNDLED_MODEL
from tests.model.kinds import DT_RANK, N_CTX, N_EMBD, Field, Fields, Kind, weights


def write(path: Path, kind: Kind, *, noise: float = 0.0) -> None:
    """Write a random model, deterministically.

    noise: share of other random values in the weights, for a draft model that is right now and then.
    """
    writer = gguf.GGUFWriter(path, kind.architecture)
    with closing(writer):
        n_vocab = _copy_tokenizer(writer, but=kind.fields)
        common = {"block_count": len(kind.layers), "context_length": N_CTX, "embedding_length": N_EMBD}
        for key, value in {**common, "attention.layer_norm_rms_epsilon": 1e-5, **kind.fields}.items():
            add_field(writer, key if key.startswith("tokenizer.") else f"{kind.architecture}.{key}", value)
        shapes = weights(token_embd=(n_vocab, N_EMBD)) | kind.others
        shapes |= {
            f"blk.{i}.{name}": shape for i, layer in enumerate(kind.layers) for name, shape in layer.items()
        }
        rng, other = np.random.default_rng(11), np.random.default_rng(12)
        for name, shape in shapes.items():
            whole = (shape[0] or n_vocab, *shape[1:])
            writer.add_tensor(
                name,
                (1 - noise) * random_values(name, whole, rng) + noise * random_values(name, whole, other),
            )
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()


def add_field(writer: gguf.GGUFWriter, key: str, value: Field) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_uint32(key, value)


@functools.cache
def _tokenizer() -> list[tuple[str, Any, Any, Any]]:
    """Return key, value, type and element type of all that the bundled model says of its tokenizer."""
    return [
        (
            key,
            field.contents(),
            field.types[0],
            field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None,
        )
        for key, field in gguf.GGUFReader(BUNDLED_MODEL).fields.items()
        if key.startswith("tokenizer.")
    ]


def _copy_tokenizer(writer: gguf.GGUFWriter, *, but: Fields) -> int:
    """Copy the tokenizer and return the size of its vocabulary."""
    n_vocab = 0
    for key, value, kind, inner in _tokenizer():
        if key not in but:
            writer.add_key_value(key, value, kind, sub_type=inner)
        if key == gguf.Keys.Tokenizer.LIST:
            n_vocab = len(value)
    return n_vocab


def words_added(*words: str) -> Fields:
    """Return tokenizer fields in which these words are control tokens in place of the last tokens."""
    known = {key: value for key, value, _, _ in _tokenizer()}
    tokens, types = known[gguf.Keys.Tokenizer.LIST], known[gguf.Keys.Tokenizer.TOKEN_TYPE]
    n = len(tokens) - len(words)
    controls = [int(gguf.TokenType.CONTROL)] * len(words)
    return {
        gguf.Keys.Tokenizer.LIST: [*tokens[:n], *words],
        gguf.Keys.Tokenizer.TOKEN_TYPE: [*types[:n], *controls],
    }


def random_values(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Return random weights, scaled so that all layers count alike and states last for some tokens."""
    if name.endswith("ssm_a"):
        return -np.resize(np.linspace(0.05, 1.0, max(shape[-1], DT_RANK), dtype=np.float32), shape)
    if "norm" in name or "freqs" in name or name.endswith("ssm_d"):
        return np.ones(shape, dtype=np.float32)
    scale = 1.0 if len(shape) == 1 else shape[-1] ** -0.5
    return rng.normal(0.0, scale, shape).astype(np.float32)
