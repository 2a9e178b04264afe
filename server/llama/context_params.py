"""Convert LlamaOptions to the parameters of a llama.cpp context."""

from __future__ import annotations

from typing import Any

from server.llama.backend import CELLS_STEP
from server.llama.library import C
from server.llama.options import CacheType, LlamaOptions

_BF16 = 30  # GGML_TYPE_BF16, the only type of a cache that the bindings lack


def context_params(options: LlamaOptions) -> Any:
    """Return the parameters of a context.

    n_ctx and n_batch are raised if necessary, because llama.cpp aborts if one of them is smaller than the
    number of sequences.
    """
    params = C.llama_context_default_params()
    params.n_ctx = -(-options.n_cells // CELLS_STEP) * CELLS_STEP
    params.n_seq_max = options.n_streams or options.n_seqs
    params.n_rs_seq = options.n_tail
    params.n_batch = max(options.n_batch, params.n_seq_max)
    params.n_ubatch = min(options.n_ubatch or options.n_batch, options.n_batch)
    params.kv_unified = not options.n_streams
    params.n_threads = options.n_threads
    params.n_threads_batch = options.n_threads_batch or options.n_threads
    params.type_k = _cache_type(options.cache_type_k)
    params.type_v = _cache_type(options.cache_type_v)
    params.flash_attn_type = {"auto": -1, "off": 0, "on": 1}[options.flash_attention]
    rope = options.rope
    if rope.scaling is not None:
        params.rope_scaling_type = {"none": 0, "linear": 1, "yarn": 2}[rope.scaling]
    params.rope_freq_base, params.rope_freq_scale = rope.freq_base, rope.freq_scale
    params.yarn_orig_ctx = rope.yarn_orig_ctx
    params.yarn_ext_factor, params.yarn_attn_factor = rope.yarn_ext_factor, rope.yarn_attn_factor
    params.yarn_beta_slow, params.yarn_beta_fast = rope.yarn_beta_slow, rope.yarn_beta_fast
    return params


def spare_sequence(params: Any) -> None:
    """Add one sequence to the parameters: the spare sequence that Windows needs (windows.py)."""
    params.n_seq_max += 1
    params.n_batch = max(params.n_batch, params.n_seq_max)


def _cache_type(name: CacheType) -> int:
    return int(getattr(C, f"GGML_TYPE_{name.upper()}", _BF16))
