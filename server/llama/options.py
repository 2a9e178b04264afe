"""Options of llama.cpp: where weights are, what is added to them, and how a context is made."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from server.llama.parts import parts

SplitMode: TypeAlias = Literal["none", "layer", "row", "tensor"]
CacheType: TypeAlias = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]
FlashAttention: TypeAlias = Literal["on", "off", "auto"]
RopeScaling: TypeAlias = Literal["none", "linear", "yarn"]

MAX_SEQS = 256  # sequences: LLAMA_MAX_SEQ of llama.cpp
_TRUE = {"true": True, "false": False}
_MAX_OVERRIDE_BYTES = 127  # bytes of a key or a text in llama_model_kv_override


@dataclass(frozen=True, slots=True)
class Override:
    """A value that replaces one in the model's metadata."""

    key: str
    value: int | float | bool | str

    @classmethod
    def parse(cls, text: str) -> Override:
        """Parse KEY=TYPE:VALUE, llama.cpp's form. Raises ValueError."""
        key, _, typed = text.partition("=")
        kind, colon, value = typed.partition(":")
        if not (key and colon) or max(len(key.encode()), len(value.encode())) > _MAX_OVERRIDE_BYTES:
            raise ValueError(f"{text} is not KEY=TYPE:VALUE, short enough, with TYPE int, float, bool or str")
        match kind:
            case "int":
                return cls(key, int(value))
            case "float":
                return cls(key, float(value))
            case "bool" if value in _TRUE:
                return cls(key, _TRUE[value])
            case "str":
                return cls(key, value)
            case _:
                raise ValueError(f"{text}: TYPE is int, float, bool (true or false) or str")


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter."""

    path: Path
    scale: float = 1.0

    @classmethod
    def parse(cls, text: str) -> Adapter:
        """Parse PATH:SCALE. Raises ValueError."""
        name, colon, scale = text.rpartition(":")
        if not (name and colon):
            raise ValueError(f"{text} is not PATH:SCALE")
        return cls(Path(name), float(scale))


HOST = "CPU"  # the buffer type of the host's memory, as ggml names it
# Names of experts' tensors, as llama.cpp's --cpu-moe has them.
EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """A rule: tensors whose names match a regular expression go to the buffer of the CPU or of a device."""

    pattern: str
    buffer: str

    @classmethod
    def parse(cls, text: str) -> TensorPlace:
        """Parse PATTERN=BUFFER, llama.cpp's form. Raises ValueError."""
        pattern, equals, buffer = text.rpartition("=")
        if not (equals and pattern and buffer):
            raise ValueError(f"{text} is not PATTERN=BUFFER")
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern} is no regular expression ({error})") from error
        return cls(pattern, buffer)


def tensor_places(texts: Sequence[str], *, cpu_moe: bool, n_cpu_moe: int) -> tuple[TensorPlace, ...]:
    """Return the rules of --override-tensor, --cpu-moe and --n-cpu-moe. The first matching rule applies."""
    named = [TensorPlace.parse(text) for text in texts]
    layers = [TensorPlace(rf"blk\.{i}{EXPERTS}", HOST) for i in range(n_cpu_moe)]
    return (*named, *([TensorPlace(EXPERTS, HOST)] if cpu_moe else layers))


@dataclass(frozen=True, slots=True)
class Weights:
    """Placement of a model's weights on devices, and modifications of the model."""

    n_gpu_layers: int = -1  # -1: all, if there is a GPU
    split_mode: SplitMode = "layer"
    tensor_split: tuple[float, ...] = ()  # share of the layers on each GPU; empty: by free memory
    main_gpu: int = 0
    rpc: tuple[str, ...] = ()  # host:port of lenders, whose devices come before this machine's GPUs
    mmap: bool = True
    mlock: bool = False
    mtp: bool = False  # load prediction blocks, if the file has any
    places: tuple[TensorPlace, ...] = ()  # exceptions: tensors kept elsewhere than their layer
    overrides: tuple[Override, ...] = ()
    adapters: tuple[Adapter, ...] = ()


@dataclass(frozen=True, slots=True)
class Rope:
    """Scaling of positions for contexts longer than trained; None, 0.0, 0 and -1.0 mean the model's value."""

    scaling: RopeScaling | None = None
    freq_base: float = 0.0
    freq_scale: float = 0.0
    yarn_orig_ctx: int = 0
    yarn_ext_factor: float = -1.0
    yarn_attn_factor: float = -1.0
    yarn_beta_slow: float = -1.0
    yarn_beta_fast: float = -1.0

    @property
    def stretch(self) -> float:
        """Return the factor by which this scaling lengthens the trained context."""
        return 1 / self.freq_scale if 0 < self.freq_scale < 1 else 1.0


@dataclass(frozen=True, slots=True)
class LlamaOptions:
    """Options with which a model is opened.

    A KV cache in F32 without flash attention is slower, but closest to exact arithmetic.
    """

    model_path: Path  # the first part, if there are several
    n_cells: int  # KV cells shared by all sequences, rounded up to a multiple of 256
    n_seqs: int
    n_batch: int = 512  # maximum rows of a decode, raised to n_seqs if less
    n_threads: int = 1
    n_threads_batch: int = 0  # 0: n_threads
    n_ubatch: int = 0  # 0: n_batch
    cache_type_k: CacheType = "f16"
    cache_type_v: CacheType = "f16"
    # auto: where library.is_open() is true, the `attention` function of LlamaBackend chooses, else llama.cpp
    flash_attention: FlashAttention = "auto"
    weights: Weights = Weights()
    rope: Rope = Rope()
    # above 0: if possible, have this number of sequences instead of n_seqs, each with its own cells
    n_streams: int = 0
    n_tail: int = 0  # maximum of Backend.n_tail
    head: Path | None = None  # file of a head or block, which guesses from the model's layers

    def with_few_threads(self) -> LlamaOptions:
        """Return the options with one thread for steps of one row, for a model whose layers are all on GPUs.

        The CPU then only looks up a row's embedding. One thread is as fast as many (8B in F16 on an H100:
        5.70 ms a step, 5.78 with 16 threads), and never waits for a thread whose core is used by another
        program. Prompts and steps with several rows keep n_threads.
        """
        return replace(self, n_threads=1, n_threads_batch=self.n_threads_batch or self.n_threads)

    @property
    def files(self) -> list[Path]:
        """Return the files that logits or saved states depend on. Raises StartupError if one is missing."""
        head = parts(self.head) if self.head else []
        return [*parts(self.model_path), *(adapter.path for adapter in self.weights.adapters), *head]

    @property
    def numerics(self) -> str:
        """Return, as a text, the options on which logits and saved states depend, apart from `files`."""
        w = self.weights
        devices = w.n_gpu_layers, w.split_mode, w.tensor_split, w.main_gpu, w.rpc
        scales = tuple(adapter.scale for adapter in w.adapters)
        attention = self.cache_type_k, self.cache_type_v, self.flash_attention
        context = attention, self.rope, bool(self.n_streams)
        return repr((devices, w.places, w.overrides, scales, *context, w.mtp))

    @property
    def costs(self) -> str:
        """Return, as a text, the options on which logits and a step's seconds depend, apart from `files`."""
        weights = replace(self.weights, adapters=())
        alike = replace(self, model_path=Path(), n_cells=0, n_seqs=0, n_streams=0, weights=weights, head=None)
        return repr((alike, self.numerics))
