"""What flags make of a model's options."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drafters.drafter_settings import DrafterSettings
from server.errors import StartupError
from server.flags import read
from server.lead.loading import prepared
from server.lead.recollection import of_model
from server.lead.tiers import fingerprint
from server.llama import library
from server.llama.model_settings import downloaded
from server.llama.options import (
    EXPERTS,
    Adapter,
    LlamaOptions,
    Override,
    Rope,
    TensorPlace,
    Weights,
    tensor_places,
)
from server.settings import LeadSettings

MODEL = Path("m.gguf")


@pytest.fixture(autouse=True)
def _as_a_user_has_it(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.delenv("DUO_FLASH_ATTN", raising=False)


def options(*flags: str) -> LlamaOptions:
    return read(LeadSettings, flags).options(MODEL, n_cells=64, n_seqs=1, n_threads=4)


DEFAULT = Weights(mtp=True)


def test_defaults_match_llama_cpp():
    assert options() == LlamaOptions(MODEL, 64, 1, n_threads=4, weights=DEFAULT)


@pytest.mark.parametrize("flags", [["--mtp", "off"], ["--draft-max", "0"]])
def test_unused_prediction_block_is_skipped(flags: list[str]):
    assert not options(*flags).weights.mtp


@pytest.mark.parametrize(
    ("flags", "changed"),
    [
        (["-ngl", "7"], {"n_gpu_layers": 7}),
        (["--n-gpu-layers=7"], {"n_gpu_layers": 7}),
        (["-sm", "row", "-mg", "1"], {"split_mode": "row", "main_gpu": 1}),
        (["-ts", "3,1.5"], {"tensor_split": (3.0, 1.5)}),
        (["--rpc", "a:1,b:2"], {"rpc": ("a:1", "b:2")}),
        (["--no-mmap", "--mlock"], {"mmap": False, "mlock": True}),
        (
            ["--override-kv", "a.b=int:3,c=bool:true", "--override-kv", "d=str:x:y"],
            {"overrides": (Override("a.b", 3), Override("c", True), Override("d", "x:y"))},
        ),
        (
            ["-ncmoe", "2", "-ot", "exps=CPU,a=b=CUDA0"],
            {
                "places": (
                    TensorPlace("exps", "CPU"),
                    TensorPlace("a=b", "CUDA0"),
                    TensorPlace(rf"blk\.0{EXPERTS}", "CPU"),
                    TensorPlace(rf"blk\.1{EXPERTS}", "CPU"),
                )
            },
        ),
        (["--cpu-moe", "--n-cpu-moe", "2"], {"places": (TensorPlace(EXPERTS, "CPU"),)}),
        (
            ["--lora", "a.gguf,b.gguf", "--lora-scaled", "c.gguf:0.5"],
            {
                "adapters": tuple(
                    Adapter(Path(f"{n}.gguf"), s) for n, s in (("a", 1.0), ("b", 1.0), ("c", 0.5))
                )
            },
        ),
    ],
)
def test_flags_about_weights(flags: list[str], changed: dict[str, Any]):
    assert options(*flags).weights == replace(DEFAULT, **changed)


@pytest.mark.parametrize(
    ("flags", "changed"),
    [
        (["-ctk", "q8_0", "-ctv", "q4_0"], {"cache_type_k": "q8_0", "cache_type_v": "q4_0"}),
        (["-fa", "off"], {"flash_attention": "off"}),
        (["-tb", "2"], {"n_threads_batch": 2}),
        (["-b", "1024", "-ub", "256"], {"n_batch": 1024, "n_ubatch": 256}),
        (["--rope-scaling", "yarn", "--rope-scale", "4"], {"rope": Rope(scaling="yarn", freq_scale=0.25)}),
        (["--rope-freq-scale", "0.5"], {"rope": Rope(freq_scale=0.5)}),
        (["--rope-freq-base", "1e6"], {"rope": Rope(freq_base=1e6)}),
        (
            ["--yarn-orig-ctx", "4096", "--yarn-ext-factor", "1", "--yarn-beta-fast", "32"],
            {"rope": Rope(yarn_orig_ctx=4096, yarn_ext_factor=1.0, yarn_beta_fast=32.0)},
        ),
    ],
)
def test_flags_about_the_context(flags: list[str], changed: dict[str, Any]):
    assert options(*flags) == replace(options(), **changed)


def test_rope_scale_lengthens_the_context():
    assert options("--rope-scale", "4").rope.stretch == 4.0
    assert options("--rope-freq-scale", "0").rope.stretch == 1.0


def test_drafters_have_the_same_flags():
    settings = read(DrafterSettings, ["-ngl", "3", "-ctk", "q8_0", "-b", "64"])
    made = settings.options(MODEL, n_cells=64, n_seqs=1, n_threads=1)
    assert (made.weights.n_gpu_layers, made.cache_type_k, made.n_batch) == (3, "q8_0", 64)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--rpc", "localhost"], "--rpc: localhost is not HOST:PORT"),
        (["--override-kv", "a=3"], "--override-kv: a=3 is not KEY=TYPE:VALUE"),
        (["--override-kv", "a=bool:perhaps"], "TYPE is int, float, bool"),
        (["--override-kv", "a=int:x"], "--override-kv: .*'x'"),
        (["--lora-scaled", "a.gguf"], "--lora-scaled: a.gguf is not PATH:SCALE"),
        (["--tensor-split=-1,2"], "--tensor-split: "),
        (["--cache-type-k", "q3"], "--cache-type-k: "),
        (["--chat-template", "llama3"], "--chat-template: this is no Jinja template"),
        (["--seed", "-2"], "--seed: "),
    ],
)
def test_impossible_options_fail_in_line(flags: list[str], said: str):
    with pytest.raises(StartupError, match=said) as raised:
        read(LeadSettings, flags)
    assert "\n" not in raised.value.message


def test_names_of_the_model():
    settings = read(LeadSettings, ["--model", "/models/big-00001-of-00002.gguf"])
    assert settings.names == ("big",)
    settings = read(LeadSettings, ["--alias", "gpt,large"])
    assert (settings.name, settings.names) == ("gpt", ("gpt", "large"))


def test_draft_model_follows_target_devices():
    settings = read(LeadSettings, ["-ngl", "9", "--lora", "a.gguf", "--override-kv", "a=int:1"])
    assert settings.draft_weights == Weights(n_gpu_layers=9)
    assert read(LeadSettings, ["-ngl", "9", "-ngld", "2"]).draft_weights.n_gpu_layers == 2


def test_chat_template_comes_from_file(tmp_path: Path):
    file = tmp_path / "template.jinja"
    file.write_text("{{ messages }}")
    assert prepared(read(LeadSettings, ["--chat-template-file", str(file)])).chat_template == "{{ messages }}"
    with pytest.raises(StartupError, match="both name one"):
        prepared(read(LeadSettings, ["--chat-template-file", str(file), "--chat-template", "{{ x }}"]))
    with pytest.raises(StartupError, match="cannot be read as text"):
        prepared(read(LeadSettings, ["--chat-template-file", str(tmp_path / "absent")]))


def test_repository_and_file_conflict():
    with pytest.raises(StartupError, match="--model and --hf-repo"):
        downloaded(read(LeadSettings, ["--hf-repo", "a/b", "--model", "m.gguf"]))
    with pytest.raises(StartupError, match="--draft-model and --hf-repo-draft"):
        prepared(read(LeadSettings, ["-hfd", "a/b", "--draft-model", "m.gguf"]))
    with pytest.raises(StartupError, match="give that with --hf-repo"):
        downloaded(read(LeadSettings, ["--hf-file", "m.gguf"]))


CHANGES = (
    "-ngl=1",
    "-sm=row",
    "-ts=1,2",
    "-mg=1",
    "--rpc=a:1",
    "--override-kv=a=int:1",
    "--lora=ADAPTER",
    "--lora-scaled=ADAPTER:0.5",
    "-ctk=q8_0",
    "-ctv=q8_0",
    "-fa=on",
    "--rope-scaling=linear",
    "--rope-scale=2",
    "--rope-freq-base=5",
    "--yarn-orig-ctx=5",
    "--yarn-ext-factor=0.5",
    "--yarn-attn-factor=0.5",
    "--yarn-beta-slow=0.5",
    "--yarn-beta-fast=0.5",
)


def in_folder(folder: Path, *flags: str) -> LlamaOptions:
    texts = [flag.replace("ADAPTER", str(folder / "adapter.gguf")) for flag in flags]
    return read(LeadSettings, texts).options(folder / "m.gguf", n_cells=64, n_seqs=1, n_threads=2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("m.gguf", "adapter.gguf"):
        (tmp_path / name).write_bytes(b"GGUF" + name.encode())
    return tmp_path


def test_logit_changes_change_fingerprints(folder: Path):
    made = [in_folder(folder), *(in_folder(folder, flag) for flag in CHANGES)]
    assert len({fingerprint(one) for one in made}) == len(made)
    assert len({of_model(one) for one in made}) == len(made)


def test_harmless_options_keep_saved_states(folder: Path):
    before = fingerprint(in_folder(folder))
    for flags in (["-b", "64"], ["-tb", "1"], ["--no-mmap"], ["--mlock"]):
        assert fingerprint(in_folder(folder, *flags)) == before
    assert of_model(in_folder(folder, "-tb", "1")) != of_model(in_folder(folder))


def test_changed_adapter_is_another_model(folder: Path):
    before = fingerprint(in_folder(folder, "--lora=ADAPTER")), of_model(in_folder(folder, "--lora=ADAPTER"))
    (folder / "adapter.gguf").write_bytes(b"GGUF and something else")
    after = fingerprint(in_folder(folder, "--lora=ADAPTER")), of_model(in_folder(folder, "--lora=ADAPTER"))
    assert before[0] != after[0]
    assert before[1] != after[1]


@pytest.mark.parametrize(
    ("on_gpu", "changed", "attention"),
    [
        (False, {}, "off"),
        (True, {}, "auto"),
        (False, {"flash_attention": "on"}, "on"),
        (False, {"cache_type_v": "q8_0"}, "auto"),
        (False, {"cache_type_k": "q8_0"}, "off"),
        (False, {"n_seqs": library.MOST_SEQS_ON_CPU}, "off"),
        (False, {"n_seqs": library.MOST_SEQS_ON_CPU + 1}, "auto"),
    ],
)
def test_duo_decides_about_flash_attention_on_cpus(
    on_gpu: bool, changed: dict[str, Any], attention: str, monkeypatch: pytest.MonkeyPatch
):
    def elsewhere(weights: Weights) -> bool:
        return on_gpu

    monkeypatch.setattr(library, "computes_elsewhere", elsewhere)
    before = replace(options(), **changed)
    after = library.with_attention(before, "off") if library.is_open(before) else before
    assert after.flash_attention == attention
    assert after.n_ubatch == (library.ROWS_ON_CPU if library.is_open(before) else 0)
    assert (after.numerics == before.numerics) == (before.flash_attention == attention)


def test_draft_tensors_have_own_places():
    lead = read(LeadSettings, ["--cpu-moe", "-ncmoed", "1", "-otd", "output=CUDA1"])
    assert lead.weights.places == (TensorPlace(EXPERTS, "CPU"),)
    own = (TensorPlace("output", "CUDA1"), TensorPlace(rf"blk\.0{EXPERTS}", "CPU"))
    assert lead.draft_weights.places == own


@pytest.mark.parametrize("text", ["exps", "=CPU", "exps=", "(=CPU"])
def test_unreadable_place_fails_in_line(text: str):
    with pytest.raises(StartupError, match=r"--override-tensor: .*(PATTERN=BUFFER|no regular expression)"):
        options("--override-tensor", text)


@pytest.mark.parametrize("layer", range(3))
def test_which_tensors_are_experts(layer: int):
    [first, second] = tensor_places((), cpu_moe=False, n_cpu_moe=2)
    name = f"blk.{layer}.ffn_gate_up_exps.weight"
    assert [bool(re.search(place.pattern, name)) for place in (first, second)] == [layer == 0, layer == 1]
    assert not re.search(EXPERTS, "blk.0.ffn_gate_inp.weight")
    assert not re.search(EXPERTS, "blk.0.ffn_up_shexp.weight")


def test_gpu_row_uses_one_thread():
    options = LlamaOptions(Path("model.gguf"), 256, 1, n_threads=8).with_few_threads()
    assert (options.n_threads, options.n_threads_batch) == (1, 8)
    options = LlamaOptions(Path("model.gguf"), 256, 1, n_threads=8, n_threads_batch=4).with_few_threads()
    assert (options.n_threads, options.n_threads_batch) == (1, 4)
