"""Inflated models say the same as the model they were made from."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

from benchmarks.gguf_file import GGUFSource, Kind, PlannedTensor, write
from benchmarks.inflate import convert, inflate, main, read_shape
from benchmarks.model_shape import Shape, choose, parse_count
from drafters.drafter_settings import BUNDLED_MODEL as DRAFT
from server.errors import StartupError
from server.llama.backend import Batch, Logits
from server.llama.llamacpp import LlamaBackend, LlamaOptions
from server.settings import BUNDLED_MODEL as TARGET

SMALL = Shape(n_layers=8, n_embd=512, n_heads=8, n_kv_heads=4, n_ffn=1408, n_vocab=8192)
PROMPT = "<|im_start|>user\nWhat does functools.lru_cache do for me?<|im_end|>\n<|im_start|>assistant\n"
N_TOKENS = 60

Continued: TypeAlias = tuple[list[int], list[Logits]]


def continuation(path: Path, along: Sequence[int] = ()) -> Continued:
    """Return greedy ids and their logits, or the logits along given ids."""
    with closing(LlamaBackend(LlamaOptions(path, 256, 1))) as backend:
        rows, tokens, logits = backend.vocab.tokenize(PROMPT, special=True), list[int](), list[Logits]()
        at = 0
        while len(tokens) < N_TOKENS:
            batch = Batch()
            batch.extend(0, at, rows, 1)
            logits.append(backend.decode(batch)[0].copy())
            at += len(rows)
            rows = [along[len(tokens)] if along else int(logits[-1].argmax())]
            tokens += rows
        return tokens, logits


@pytest.fixture(scope="module")
def draft() -> GGUFSource:
    return GGUFSource(DRAFT)


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Continued:
    """Return the draft model's own continuation."""
    path = tmp_path_factory.mktemp("draft") / "small.gguf"
    convert(DRAFT, path)
    return continuation(path)


def assert_says(large: Path, said: Continued) -> None:
    """Require the same ids, from logits that differ by what an F16 cache does to the last bits."""
    assert continuation(large)[0] == said[0]
    assert_close(large, said)


def assert_close(large: Path, said: Continued) -> None:
    _, logits = continuation(large, along=said[0])
    difference = max(float(np.abs(a - b).max()) for a, b in zip(said[1], logits, strict=True))
    assert difference < 0.02 * float(np.std(said[1][0]))


@pytest.mark.model
@pytest.mark.parametrize(("width", "n_layers"), [(1, 6), (2, 4), (3, 7)], ids=["deeper", "wider", "both"])
def test_the_function_stays(tmp_path: Path, width: int, n_layers: int, draft: GGUFSource, said: Continued):
    large = tmp_path / "large.gguf"
    inflate(DRAFT, large, read_shape(draft).widened(width, n_layers), "f32")
    assert_says(large, said)


def test_metadata_follow_the_shape(tmp_path: Path, draft: GGUFSource):
    out = tmp_path / "large.gguf"
    shape = read_shape(draft).widened(2, 5)
    inflate(DRAFT, out, shape, "bf16")
    after = GGUFSource(out)
    assert read_shape(after) == shape
    assert "inflated" in after.field("general.name")
    for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.chat_template"):
        assert after.field(key) == draft.field(key)
    eps = "llama.attention.layer_norm_rms_epsilon"
    assert after.field(eps) == pytest.approx(draft.field(eps) / 2)


def test_inflating_gives_equal_files(tmp_path: Path, draft: GGUFSource):
    shape = read_shape(draft).widened(2, 5)
    for name in ("a.gguf", "b.gguf"):
        inflate(DRAFT, tmp_path / name, shape, "q8_0")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_added_weights_cost_but_write_nothing(tmp_path: Path, draft: GGUFSource):
    out = tmp_path / "large.gguf"
    inflate(DRAFT, out, read_shape(draft).widened(2, 5), "f32")
    large = GGUFSource(out)
    for role in ("attn_output", "ffn_down"):
        assert not large.values(f"blk.4.{role}.weight").any()
        old = large.values(f"blk.3.{role}.weight")
        rows, columns = old.shape
        assert old[: rows // 2, : columns // 2].any()
        assert not old[rows // 2 :].any()
        assert not old[:, columns // 2 :].any()
    filler = large.values("blk.4.ffn_up.weight")
    assert float(filler.std()) == pytest.approx(filler.shape[1] ** -0.5, rel=0.02)
    assert len(np.unique(filler)) > 1000


def test_a_shape_for_400m_parameters():
    shape = choose(SMALL, 400_000_000)
    assert (shape.n_embd, shape.n_ffn, shape.n_heads, shape.n_kv_heads) == (1024, 2816, 16, 8)
    assert shape.n_params == pytest.approx(400_000_000, rel=0.02)
    assert shape.head_dim == SMALL.head_dim


@pytest.mark.parametrize("wanted", ["28M", "100M", "1B", "8B", "70b"])
def test_chosen_shapes_have_the_wanted_size(wanted: str):
    n_params = parse_count(wanted)
    assert choose(SMALL, n_params).n_params == pytest.approx(n_params, rel=0.05)


def test_the_shape_is_what_the_file_holds():
    source = GGUFSource(TARGET)
    assert read_shape(source) == SMALL
    n_weights = sum(int(np.prod(source.shape(name))) for name in source.names if "norm" not in name)
    assert n_weights == SMALL.n_params


SMOLLM2 = Shape(n_layers=30, n_embd=576, n_heads=9, n_kv_heads=3, n_ffn=1536, n_vocab=49152)


@pytest.mark.parametrize("wanted", ["300M", "400M", "1B", "8B"])
def test_smollm2_reaches_every_size(wanted: str):
    shape = choose(SMOLLM2, parse_count(wanted))
    assert shape.n_params == pytest.approx(parse_count(wanted), rel=0.05)
    assert (shape.group, shape.head_dim, shape.n_ffn % 32) == (3, 64, 0)
    assert SMOLLM2.misfit(shape) is None


@pytest.fixture(scope="module")
def odd_heads(tmp_path_factory: pytest.TempPathFactory, draft: GGUFSource) -> Path:
    """Make a model like SmolLM2: 9 heads and 3 KV heads of 64, one embedding for both ends, in Q4_1."""
    shape = Shape(n_layers=2, n_embd=576, n_heads=9, n_kv_heads=3, n_ffn=768, n_vocab=8192)
    path = tmp_path_factory.mktemp("odd") / "odd.gguf"
    sizes = {"block_count": 2, "embedding_length": 576, "feed_forward_length": 768}
    heads = {"attention.head_count": 9, "attention.head_count_kv": 3, "rope.dimension_count": 64}
    write(
        path,
        draft,
        Kind.Q4_1,
        random_tensors(shape),
        {f"llama.{key}": n for key, n in (sizes | heads).items()},
    )
    return path


def random_tensors(shape: Shape) -> list[PlannedTensor]:
    """Return random tensors of this shape, strong enough that every layer changes the logits."""
    sizes = {
        "attn_q": (shape.n_q, shape.n_embd), "attn_k": (shape.n_kv, shape.n_embd),
        "attn_v": (shape.n_kv, shape.n_embd), "attn_output": (shape.n_embd, shape.n_q),
        "ffn_gate": (shape.n_ffn, shape.n_embd), "ffn_up": (shape.n_ffn, shape.n_embd),
        "ffn_down": (shape.n_embd, shape.n_ffn), "attn_norm": (shape.n_embd,), "ffn_norm": (shape.n_embd,),
    }  # fmt: skip
    named = {f"blk.{i}.{role}.weight": size for i in range(shape.n_layers) for role, size in sizes.items()}
    named |= {"token_embd.weight": (shape.n_vocab, shape.n_embd), "output_norm.weight": (shape.n_embd,)}
    rng = np.random.default_rng(7)

    def values(size: tuple[int, ...]) -> npt.NDArray[np.float32]:
        scale = 1.0 if len(size) == 1 else size[-1] ** -0.5
        drawn = rng.normal(1.0 if len(size) == 1 else 0.0, 0.1 if len(size) == 1 else scale, size)
        return drawn.astype(np.float32)

    made = {name: values(size) for name, size in named.items()}
    return [
        PlannedTensor(name, size, Kind.F32 if len(size) == 1 else Kind.Q4_1, partial(made.__getitem__, name))
        for name, size in named.items()
    ]


@pytest.mark.model
@pytest.mark.parametrize(
    "flags",
    [
        ["--embd", "1024", "--heads", "16", "--kv-heads", "4", "--ffn", "1024", "--layers", "3"],
        ["--heads", "12", "--kv-heads", "4"],
        ["--heads", "12", "--kv-heads", "3", "--embd", "640"],
    ],
    ids=["regrouped", "more groups", "larger groups"],
)
def test_odd_q4_1_heads_keep_logits(tmp_path: Path, odd_heads: Path, flags: list[str]):
    plain, large = tmp_path / "plain.gguf", tmp_path / "large.gguf"
    convert(odd_heads, plain)
    assert "output.weight" not in GGUFSource(odd_heads).names
    assert main(["--model", str(odd_heads), "--out", str(large), "--type", "f32", *flags]) == 0
    assert_close(large, continuation(plain))  # random weights leave near-ties, so ids may differ


@pytest.mark.parametrize("text", ["", "M", "many", "-3M", "0"])
def test_non_count_is_refused(text: str):
    with pytest.raises(ValueError, match=r".*"):
        parse_count(text)


def test_smaller_size_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    flags = ["--model", str(DRAFT), "--params", "1M", "--out", str(tmp_path / "out.gguf")]
    assert main(flags) == 1
    assert "wanted 1,000,000" in capsys.readouterr().err


def test_too_small_shape_is_refused(tmp_path: Path, draft: GGUFSource):
    shape = read_shape(draft)
    with pytest.raises(StartupError, match="n_layers 3 is less than the model's 4"):
        inflate(DRAFT, tmp_path / "out.gguf", shape.widened(2, shape.n_layers - 1), "f32")


@pytest.mark.model
@pytest.mark.parametrize(
    "flags",
    [
        ["--layers", "6"],
        ["--embd", "320"],
        ["--ffn", "1024"],
        ["--heads", "8"],
        ["--heads", "9", "--kv-heads", "3"],
        ["--embd", "512", "--heads", "6", "--kv-heads", "2", "--layers", "5", "--ffn", "672"],
    ],
    ids=" ".join,
)
def test_chosen_sizes_keep_the_function(tmp_path: Path, flags: list[str], said: Continued):
    large = tmp_path / "large.gguf"
    assert main(["--model", str(DRAFT), "--out", str(large), "--type", "f32", *flags]) == 0
    assert_says(large, said)


def test_chosen_sizes_are_what_the_file_holds(tmp_path: Path, draft: GGUFSource):
    out = tmp_path / "large.gguf"
    flags = ["--embd", "320", "--ffn", "1024", "--heads", "8", "--layers", "6", "--type", "q8_0"]
    assert main(["--model", str(DRAFT), "--out", str(out), *flags]) == 0
    small, large = read_shape(draft), read_shape(GGUFSource(out))
    assert (large.n_layers, large.n_embd, large.n_ffn, large.n_heads) == (6, 320, 1024, 8)
    assert (large.n_kv_heads, large.head_dim) == (small.n_kv_heads, small.head_dim)
    source = GGUFSource(out)
    n_weights = sum(int(np.prod(source.shape(name))) for name in source.names if "norm" not in name)
    assert n_weights == large.n_params


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--heads", "2"], "n_heads 2 is less than the model's"),
        (["--kv-heads", "4"], "each key-value head must serve"),
        (["--embd", "300", "--type", "q8_0"], "must be a multiple of 32"),
    ],
)
def test_misfitting_sizes_are_refused(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["--model", str(DRAFT), "--out", str(tmp_path / "out.gguf"), *flags]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out.gguf").exists()


def test_unknown_tensors_are_refused(tmp_path: Path, draft: GGUFSource):
    odd = tmp_path / "odd.gguf"
    name = "blk.0.attn_q.bias"
    tensor = PlannedTensor(name, (256,), Kind.F32, lambda: np.zeros(256, dtype=np.float32))
    embedding = PlannedTensor(
        "token_embd.weight", (8192, 256), Kind.F32, lambda: draft.values("token_embd.weight")
    )
    write(odd, draft, Kind.F32, [embedding, tensor], {})
    with pytest.raises(StartupError, match=name):
        read_shape(GGUFSource(odd))
