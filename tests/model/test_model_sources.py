"""Flags about the model with llama.cpp: files in parts, LoRA adapters, cache types, embeddings."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import gguf
import numpy as np
import pytest

from server.errors import StartupError
from server.flags import read
from server.lead.tiers import fingerprint
from server.llama import devices
from server.llama.backend import Batch
from server.llama.embedder import LlamaEmbedder
from server.llama.embedding_worker import EmbeddingWorker
from server.llama.library import default_cells
from server.llama.llamacpp import LlamaBackend
from server.llama.options import LlamaOptions, Override, Rope, Weights
from server.settings import BUNDLED_MODEL, LeadSettings

pytestmark = pytest.mark.model
PROMPT = "def fibonacci(n):"
N_TOKENS = 12


def opened(path: Path = BUNDLED_MODEL, *flags: str) -> LlamaBackend:
    settings = read(LeadSettings, flags)
    return LlamaBackend(settings.options(path, n_cells=256, n_seqs=1, n_threads=1))


def reply(backend: LlamaBackend) -> list[int]:
    """Return greedy tokens after the prompt."""
    tokens = backend.vocab.tokenize(PROMPT, special=False)
    n_prompt, n_past = len(tokens), 0
    for _ in range(N_TOKENS):
        batch = Batch()
        batch.extend(0, n_past, tokens[n_past:], 1)
        n_past = len(tokens)
        tokens.append(int(backend.decode(batch)[-1].argmax()))
    backend.trim(0, 0)
    return tokens[n_prompt:]


def reply_of(path: Path = BUNDLED_MODEL, *flags: str) -> list[int]:
    with closing(opened(path, *flags)) as backend:
        return reply(backend)


@pytest.fixture(scope="module")
def plain() -> list[int]:
    return reply_of()


@pytest.fixture(scope="module")
def in_parts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the bundled model in the parts that llama.cpp's gguf-split makes."""
    folder = tmp_path_factory.mktemp("parts")
    source = gguf.GGUFReader(BUNDLED_MODEL)
    writer = gguf.GGUFWriter(folder / "m.gguf", "llama", split_max_tensors=20)
    for key, field in source.fields.items():
        if not key.startswith("GGUF.") and key != gguf.Keys.General.ARCHITECTURE:
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], sub_type=inner)
    for tensor in source.tensors:
        writer.add_tensor(tensor.name, np.asarray(tensor.data), raw_dtype=tensor.tensor_type)
    with closing(writer):
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    paths = sorted(folder.iterdir())
    assert len(paths) > 2
    return paths


def test_any_part_loads_whole_model(in_parts: list[Path], plain: list[int]):
    assert reply_of(in_parts[0]) == plain
    with closing(opened(in_parts[-1])) as backend:
        assert backend.name == "m"
        assert reply(backend) == plain
    assert default_cells(in_parts[1], 2) == default_cells(BUNDLED_MODEL, 2)


def test_a_missing_part_is_named(in_parts: list[Path], tmp_path: Path):
    shutil.copy(in_parts[0], tmp_path)
    with pytest.raises(StartupError, match=in_parts[1].name):
        opened(tmp_path / in_parts[0].name)


def test_fingerprint_covers_every_part(in_parts: list[Path], tmp_path: Path):
    for path in in_parts:
        shutil.copy(path, tmp_path)
    first = tmp_path / in_parts[0].name
    before = fingerprint(LlamaOptions(first, 256, 1))
    with (tmp_path / in_parts[-1].name).open("ab") as file:
        file.write(b"something else")
    assert fingerprint(LlamaOptions(first, 256, 1)) != before


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a random LoRA adapter of rank 2, strong enough to change the text."""
    path = tmp_path_factory.mktemp("lora") / "adapter.gguf"
    noise = np.random.default_rng(5)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 2.0)
    for tensor in gguf.GGUFReader(BUNDLED_MODEL).tensors:
        if tensor.name.endswith(("attn_q.weight", "ffn_up.weight")):
            n_in, n_out = (int(n) for n in tensor.shape)
            for part, shape in (("lora_a", (2, n_in)), ("lora_b", (n_out, 2))):
                writer.add_tensor(f"{tensor.name}.{part}", noise.normal(0, 0.3, shape).astype(np.float32))
    with closing(writer):
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    return path


def test_adapter_scale_is_applied(adapter: Path, plain: list[int]):
    with_it = reply_of(BUNDLED_MODEL, "--lora", str(adapter))
    assert with_it != plain
    assert reply_of(BUNDLED_MODEL, "--lora-scaled", f"{adapter}:0") == plain
    assert reply_of(BUNDLED_MODEL, "--lora-scaled", f"{adapter}:1") == with_it


def test_foreign_adapter_is_refused(tmp_path: Path):
    with pytest.raises(StartupError, match="no LoRA adapter at"):
        opened(BUNDLED_MODEL, "--lora", str(tmp_path / "absent.gguf"))
    with pytest.raises(StartupError, match="cannot load the LoRA adapter"):
        opened(BUNDLED_MODEL, "--lora", str(BUNDLED_MODEL))


@pytest.mark.parametrize("kind", ["f32", "bf16", "q8_0", "q4_0"])
def test_every_type_of_cache_gives_a_text(kind: str, plain: list[int]):
    text = reply_of(BUNDLED_MODEL, "-ctk", kind, "-ctv", kind, "-fa", "auto")
    assert len(text) == N_TOKENS
    if kind == "f32":
        assert text == plain


def test_impossible_cache_gives_llamas_reason():
    with pytest.raises(StartupError, match=r"flash_attn.*--flash-attn") as raised:
        opened(BUNDLED_MODEL, "-ctv", "q8_0", "-fa", "off")
    assert "\n" not in raised.value.message


@pytest.mark.parametrize(
    "flags",
    [
        ["--no-mmap"],
        ["-fa", "off"],
        ["-fa", "on"],
        ["-tb", "2"],
        ["-b", "32", "-ub", "8"],
        ["--override-kv", "general.name=str:another"],
        ["--rope-freq-base", "10000"],
        ["-ngl", "0", "--split-mode", "none", "--tensor-split", "1"],
    ],
    ids=" ".join,
)
def test_loading_options_keep_the_text(flags: Sequence[str], plain: list[int]):
    assert reply_of(BUNDLED_MODEL, *flags) == plain


def test_overrides_and_scaled_positions_are_honoured():
    with closing(opened(BUNDLED_MODEL, "--override-kv", "llama.context_length=int:128")) as backend:
        assert backend.n_ctx == 128
    options = LlamaOptions(BUNDLED_MODEL, 16384, 1, rope=Rope(scaling="yarn", freq_scale=0.5))
    with (
        closing(LlamaBackend(LlamaOptions(BUNDLED_MODEL, 16384, 1))) as one,
        closing(LlamaBackend(options)) as two,
    ):
        assert two.n_ctx == 2 * one.n_ctx
    shorter = Weights(overrides=(Override("llama.context_length", 128),))
    assert default_cells(BUNDLED_MODEL, 3, shorter) == 3 * 128


def test_rpc_needs_a_capable_build(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(devices, "has_rpc", lambda: False)
    with pytest.raises(StartupError, match=r"--rpc: this build.*GGML_RPC=on"):
        opened(BUNDLED_MODEL, "--rpc", "127.0.0.1:1")


@pytest.fixture
def embedding() -> Callable[..., LlamaEmbedder]:
    def make(**options: object) -> LlamaEmbedder:
        exact = LlamaOptions(
            BUNDLED_MODEL, 2048, 1, cache_type_k="f32", cache_type_v="f32", flash_attention="off"
        )
        return LlamaEmbedder(exact, **options)  # pyright: ignore[reportArgumentType]

    return make


@pytest.mark.parametrize("pooling", [None, "mean", "cls", "last"])
async def test_embeddings_ignore_their_neighbours(
    pooling: str | None, embedding: Callable[..., LlamaEmbedder]
):
    with closing(embedding(pooling=pooling)) as embedder, closing(EmbeddingWorker(embedder)) as worker:
        texts = [
            f"a function that {verb} a list {'again ' * n}" for n, verb in enumerate(["sorts", "sums"] * 9)
        ]
        ids = [embedder.tokenize(text) for text in texts]
        together = await worker.embed(ids)
        assert together.shape == (len(texts), embedder.n_embd)
        assert np.allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)
        for one, vector in zip(ids[:3], together, strict=False):
            assert np.allclose(embedder.embed([one])[0], vector, atol=1e-5)


async def test_similar_meanings_are_nearer(embedding: Callable[..., LlamaEmbedder]):
    with closing(embedding()) as embedder:
        texts = [
            "How do I sort a list in Python?",
            "How can I sort a Python list?",
            "Paris, early autumn rain",
        ]
        one, same, other = embedder.embed([embedder.tokenize(text) for text in texts])
        assert float(one @ same) > float(one @ other)


def test_contexts_share_weights_and_end():
    with closing(opened()) as backend:
        embedder = LlamaEmbedder(backend.options, model=backend.model)
        vector = embedder.embed([embedder.tokenize("hello")])[0]
        before = reply(backend)
        assert np.allclose(embedder.embed([embedder.tokenize("hello")])[0], vector)
        embedder.close()
        assert reply(backend) == before
