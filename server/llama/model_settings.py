"""Flags about loading a model, for leads, drafters and the probe; they have llama.cpp's names."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Self, TypeAlias, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_settings import BaseSettings, NoDecode

from server.errors import StartupError
from server.llama import cores
from server.llama.hub import FetchedModel, find, source
from server.llama.options import (
    Adapter,
    CacheType,
    FlashAttention,
    LlamaOptions,
    Override,
    Rope,
    RopeScaling,
    SplitMode,
    TensorPlace,
    Weights,
    tensor_places,
)


def separated(value: Any) -> list[str]:
    """Split the values of a flag at commas, and strip spaces; the flag may be given several times."""
    texts = [value] if isinstance(value, str) else value
    return [part for text in texts for piece in str(text).split(",") if (part := piece.strip())]


def parsed(parse: Callable[[str], object]) -> AfterValidator:
    """Return a validator of a text; `parse` raises ValueError if it is invalid."""

    def check(text: str) -> str:
        parse(text)
        return text

    return AfterValidator(check)


def each(parse: Callable[[str], object]) -> AfterValidator:
    """Return a validator of several texts; `parse` raises ValueError if one is invalid."""

    def check(texts: tuple[str, ...]) -> tuple[str, ...]:
        for text in texts:
            parse(text)
        return texts

    return AfterValidator(check)


def _parse_address(text: str) -> None:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"{text} is not HOST:PORT")


_YES = ("1", "ON", "YES", "TRUE")  # values of a variable that Hugging Face takes for true

Texts: TypeAlias = Annotated[tuple[str, ...], NoDecode, BeforeValidator(separated)]
Shares: TypeAlias = Annotated[tuple[Annotated[float, Field(ge=0)], ...], NoDecode, BeforeValidator(separated)]


class ModelSettings(BaseSettings):
    """Settings of how a model is loaded and its context made."""

    model: Path = Field(description="the model's GGUF file, or any part of a split one")
    hf_repo: str | None = Field(
        None,
        description="USER/MODEL[:QUANT] on Hugging Face instead of --model; QUANT is Q4_K_M if it exists",
    )
    hf_file: str | None = Field(None, description="the file in --hf-repo (default: by QUANT)")
    offline: bool = Field(
        default_factory=lambda: os.environ.get("HF_HUB_OFFLINE", "").upper() in _YES,
        description="fetch nothing: use what was fetched before (default: HF_HUB_OFFLINE)",
    )
    gpu_layers: int = Field(-1, ge=-1, description="layers on the GPU; -1: all")
    split_mode: SplitMode = Field("layer", description="how to divide the model among GPUs")
    tensor_split: Shares = Field((), description="shares of the GPUs, such as 3,1 (default: by free memory)")
    main_gpu: int = Field(0, ge=0, description="the GPU of --split-mode none")
    rpc: Annotated[Texts, each(_parse_address)] = Field(
        (),
        description="machines with duo lend, which get layers like GPUs",
    )
    mmap: bool = Field(True, description="map the file instead of reading it")
    mlock: bool = Field(False, description="keep the weights from being swapped out")
    cpu_moe: bool = Field(False, description="keep the experts' weights in host memory")
    n_cpu_moe: int = Field(0, ge=0, description="--cpu-moe for the first N layers only")
    override_tensor: Annotated[Texts, each(TensorPlace.parse)] = Field(
        (), description="put tensors whose names match on CPU or a named device"
    )
    override_kv: Annotated[Texts, each(Override.parse)] = Field(
        (), description="replace the model's metadata; TYPE is int, float, bool or str"
    )
    lora: Texts = Field((), description="GGUF files of LoRA adapters")
    lora_scaled: Annotated[Texts, each(Adapter.parse)] = Field((), description="LoRA adapters with scales")
    cache_type_k: CacheType = Field("f16", description="type of keys in the KV cache")
    cache_type_v: CacheType = Field(
        "f16", description="type of values in the KV cache; quantised types need flash attention"
    )
    flash_attn: FlashAttention = Field(
        "auto", description="flash attention; auto: on a CPU only if measured quicker"
    )
    threads_batch: int = Field(0, ge=0, description="CPU threads for several rows; 0: --threads")
    cpu_mask: Annotated[str, parsed(cores.of_mask)] = Field(
        "", description="CPU cores to use, as bits (default: all)"
    )
    cpu_range: Annotated[str, parsed(cores.of_range)] = Field(
        "", description="CPU cores to use beside --cpu-mask"
    )
    batch_size: int = Field(512, ge=1, le=1 << 16, description="maximum rows of a step")
    ubatch_size: int = Field(
        0, ge=0, description="maximum rows evaluated at once; 0: --batch-size, on a CPU 128"
    )
    rope_scaling: RopeScaling | None = Field(
        None, description="scaling beyond the trained context (default: the model's)"
    )
    rope_scale: float = Field(0.0, ge=0, description="factor of the trained context; 0: the model's")
    rope_freq_base: float = Field(0.0, ge=0, description="0: the model's")
    rope_freq_scale: float = Field(0.0, ge=0, description="1 / --rope-scale; 0: the model's")
    yarn_orig_ctx: int = Field(0, ge=0, description="trained context; 0: the model's")
    yarn_ext_factor: float = Field(-1.0, description="YaRN extrapolation mix; -1: the model's")
    yarn_attn_factor: float = Field(-1.0, description="YaRN attention scale; -1: the model's")
    yarn_beta_slow: float = Field(-1.0, description="YaRN beta slow; -1: the model's")
    yarn_beta_fast: float = Field(-1.0, description="YaRN beta fast; -1: the model's")

    def pinned(self) -> Self:
        """Pin the process to the cores that the settings name, and return the settings.

        Call it before threads start. Raises StartupError.
        """
        cores.pin(cores.of_mask(self.cpu_mask) | cores.of_range(self.cpu_range))
        return self

    @property
    def weights(self) -> Weights:
        adapters = [Adapter(Path(name)) for name in self.lora]
        return Weights(
            n_gpu_layers=self.gpu_layers,
            split_mode=self.split_mode,
            tensor_split=self.tensor_split,
            main_gpu=self.main_gpu,
            rpc=self.rpc,
            mmap=self.mmap,
            mlock=self.mlock,
            places=tensor_places(self.override_tensor, cpu_moe=self.cpu_moe, n_cpu_moe=self.n_cpu_moe),
            overrides=tuple(Override.parse(text) for text in self.override_kv),
            adapters=(*adapters, *(Adapter.parse(text) for text in self.lora_scaled)),
        )

    @property
    def rope(self) -> Rope:
        return Rope(
            scaling=self.rope_scaling,
            freq_base=self.rope_freq_base,
            freq_scale=self.rope_freq_scale or (1 / self.rope_scale if self.rope_scale else 0.0),
            yarn_orig_ctx=self.yarn_orig_ctx,
            yarn_ext_factor=self.yarn_ext_factor,
            yarn_attn_factor=self.yarn_attn_factor,
            yarn_beta_slow=self.yarn_beta_slow,
            yarn_beta_fast=self.yarn_beta_fast,
        )

    def options(self, path: Path, *, n_cells: int, n_seqs: int, n_threads: int) -> LlamaOptions:
        """Return the options of the model in this file."""
        return LlamaOptions(
            model_path=path,
            n_cells=n_cells,
            n_seqs=n_seqs,
            n_batch=self.batch_size,
            n_threads=n_threads,
            n_threads_batch=self.threads_batch,
            n_ubatch=self.ubatch_size,
            cache_type_k=self.cache_type_k,
            cache_type_v=self.cache_type_v,
            flash_attention=self.flash_attn,
            weights=self.weights,
            rope=self.rope,
        )


S = TypeVar("S", bound=ModelSettings)


def found(settings: ModelSettings) -> FetchedModel | None:
    """Return the model of the repository that the settings name, if any. Raises StartupError."""
    if settings.hf_repo is None:
        if settings.hf_file is not None:
            raise StartupError("--hf-file is a file of a repository: give that with --hf-repo")
        return None
    if "model" in settings.model_fields_set:
        raise StartupError("--model and --hf-repo both name a model: give one of them")
    return find(source(settings.hf_repo, settings.hf_file), offline=settings.offline)


def downloaded(settings: S, fetched: FetchedModel | None = None) -> S:
    """Return settings that name the model's file instead of a repository. Raises StartupError.

    Args:
        settings: The settings.
        fetched: The settings' model, as found() returned it; None: call found() now.
    """
    if (one := fetched or found(settings)) is None:
        return settings
    return settings.model_copy(update={"model": one.model, "hf_repo": None, "hf_file": None})
