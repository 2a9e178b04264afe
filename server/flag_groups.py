"""Order of flags in the help, and the placeholders of their values."""

from __future__ import annotations

START = "Start with these"
REST = "Expert"

LEAD = {
    START: "model hf_repo draft_model hf_repo_draft ctx_size parallel gpu_layers host port api_key",
    "Model": "hf_file mmproj mmproj_auto allow_remote_images offline alias chat_template chat_template_file "
    "note threads threads_batch flash_attn split_mode tensor_split main_gpu rpc cpu_moe n_cpu_moe lora "
    "lora_scaled embeddings embedding_model pooling reranking rerank_model",
    "Drafting": "draft_mode drafters redis redis_listen pool draft_threads "
    "gpu_layers_draft draft_devices cpu_moe_draft n_cpu_moe_draft mtp mtp_max draft_max leaves lookup gate "
    "verify",
    "Serving": "api_key_file no_api_key cors_origins ssl_key_file ssl_cert_file max_queued max_tokens "
    "max_body timeout write_timeout request_timeout watchdog grace ui slots metrics print log_format "
    "log_requests log_prompts smooth",
    "Defaults of requests": "temp top_k top_p min_p seed predict reasoning reasoning_format "
    "reasoning_budget context_shift verbose",
    "Cache": "cache_ram cache_dir cache_disk cache_type_k cache_type_v kv_unified",
    REST: "batch_size ubatch_size cpu_mask cpu_range cpu_mask_draft cpu_range_draft mmap mlock "
    "override_tensor override_tensor_draft override_kv exactness "
    "stable_width profile rope_scaling rope_scale rope_freq_base rope_freq_scale yarn_orig_ctx "
    "yarn_ext_factor yarn_attn_factor yarn_beta_slow yarn_beta_fast",
}
_MODEL = (
    "hf_file offline threads_batch flash_attn split_mode tensor_split main_gpu rpc cpu_moe n_cpu_moe lora "
    "lora_scaled cache_type_k cache_type_v"
)
DRAFTER = {
    START: "redis model hf_repo head kind translate name threads gpu_layers",
    "Drafting": "pool capacity ctx_size sequences branches path_min",
    "Model": _MODEL,
    "Another engine": "url engine_model engine_key",
    "Kinds without a model": "vocab_from texts accept td_ms seed",
    REST: "latency_ms batch_size ubatch_size cpu_mask cpu_range mmap mlock override_tensor override_kv "
    "rope_scaling rope_scale rope_freq_base rope_freq_scale yarn_orig_ctx yarn_ext_factor "
    "yarn_attn_factor yarn_beta_slow yarn_beta_fast",
}
PROBE = {
    START: "model hf_repo threads max_width json gpu_layers kv_unified",
    "Model": _MODEL,
    REST: DRAFTER[REST].removeprefix("latency_ms "),
}
_FIRST = "model hf_repo draft_model hf_repo_draft questions guess_ms latency_ms json gpu_layers"
DOCTOR = {**LEAD, START: _FIRST}
GROUPS = {
    "duo up": LEAD,
    "duo serve": LEAD,
    "duo-drafter": DRAFTER,
    "duo probe": PROBE,
    "duo doctor": DOCTOR,
}
"""For each program, the names of the settings under each heading. Other programs have one group."""

VALUES = {
    "api_key": "KEY,…",
    "alias": "NAME,…",
    "cors_origins": "ORIGIN,…",
    "hf_repo": "USER/MODEL",
    "hf_repo_draft": "USER/MODEL",
    "hf_file": "NAME",
    "host": "HOST",
    "redis": "URL",
    "redis_listen": "HOST:PORT",
    "rpc": "HOST:PORT,…",
    "device": "NAME,…",
    "tensor_split": "N,…",
    "cpu_mask": "HEX",
    "cpu_mask_draft": "HEX",
    "cpu_range": "FIRST-LAST",
    "cpu_range_draft": "FIRST-LAST",
    "override_kv": "KEY=TYPE:VALUE,…",
    "override_tensor": "PATTERN=BUFFER,…",
    "override_tensor_draft": "PATTERN=BUFFER,…",
    "lora": "PATH,…",
    "lora_scaled": "PATH:SCALE,…",
    "pool": "NAME",
    "name": "NAME",
    "kind": "KIND",
    "url": "URL",
    "draft_devices": "N,…",
    "cache_ram": "MIB",
    "cache_disk": "MIB",
    "max_body": "MIB",
    "timeout": "SECONDS",
    "write_timeout": "SECONDS",
    "request_timeout": "SECONDS",
    "watchdog": "SECONDS",
    "grace": "SECONDS",
    "interval": "SECONDS",
    "td_ms": "MS",
    "latency_ms": "MS",
    "guess_ms": "MS",
}
"""Placeholders of values in the help, for settings whose type does not give one."""
