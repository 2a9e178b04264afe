"""Kinds of models that people run, each as small as it can be: what llama.cpp looks for in their files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

N_EMBD, N_LAYERS, N_FFN, N_HEADS, N_KV_HEADS, SIZE = 64, 4, 128, 4, 2, 16  # SIZE: of a head
D_INNER, D_STATE, D_CONV, DT_RANK = 2 * N_EMBD, 8, 4, 4
N_EXPERTS, N_USED, N_FFN_EXPERT = 4, 2, 32
Q_RANK, KV_RANK, N_ROT = 32, 24, 8  # of latent attention
WIDE, OUT_RANK, INDEX, STREAMS = 64, 16, 64, 4  # of compressed attention
N_INDEXERS = 16  # heads: where the scores of all are negative, cells are chosen by their place
MIXED = (2 + STREAMS) * STREAMS
N_PER_LAYER = 8  # channels of Gemma's embeddings for each layer
N_CTX = 2048
WINDOW = 24  # tokens that layers with a sliding window see

Shapes: TypeAlias = dict[str, tuple[int, ...]]
"""Of tensors by their names in a layer, in numpy's order, rows first."""
Field: TypeAlias = float | str | list[int] | list[bool] | list[float] | list[str]
Fields: TypeAlias = Mapping[str, Field]


def weights(**shapes: tuple[int, ...]) -> Shapes:
    """Return the shapes of these names, which end with .weight in a file."""
    return {f"{name}.weight": shape for name, shape in shapes.items()}


OUTPUT_NORM = weights(output_norm=(N_EMBD,))


class Kind(NamedTuple):
    """A kind of model.

    Its architecture in llama.cpp's name, its layers, its metadata (tokenizer keys whole, others without the
    architecture), and tensors outside the layers beside the embedding. 0 rows: one for each token.
    """

    architecture: str
    layers: list[Shapes]
    fields: Fields
    others: Shapes = OUTPUT_NORM


NORM = weights(attn_norm=(N_EMBD,))
ATTENTION = weights(
    attn_q=(N_HEADS * SIZE, N_EMBD),
    attn_k=(N_KV_HEADS * SIZE, N_EMBD),
    attn_v=(N_KV_HEADS * SIZE, N_EMBD),
    attn_output=(N_EMBD, N_HEADS * SIZE),
)
QK_NORM = weights(attn_q_norm=(SIZE,), attn_k_norm=(SIZE,))
POST_NORM = weights(post_attention_norm=(N_EMBD,))
FFN = weights(ffn_gate=(N_FFN, N_EMBD), ffn_up=(N_FFN, N_EMBD), ffn_down=(N_EMBD, N_FFN))
FFN_NORM = weights(ffn_norm=(N_EMBD,))
FEED_FORWARD = FFN_NORM | FFN
EXPERTS = weights(
    ffn_gate_inp=(N_EXPERTS, N_EMBD),
    ffn_gate_exps=(N_EXPERTS, N_FFN_EXPERT, N_EMBD),
    ffn_up_exps=(N_EXPERTS, N_FFN_EXPERT, N_EMBD),
    ffn_down_exps=(N_EXPERTS, N_EMBD, N_FFN_EXPERT),
)
EXPERT_BIASES: Shapes = {
    "ffn_gate_inp.bias": (N_EXPERTS,),
    "ffn_gate_exps.bias": (N_EXPERTS, N_FFN_EXPERT),
    "ffn_up_exps.bias": (N_EXPERTS, N_FFN_EXPERT),
    "ffn_down_exps.bias": (N_EXPERTS, N_EMBD),
}
SHARED_EXPERT = weights(
    ffn_gate_shexp=(N_FFN_EXPERT, N_EMBD),
    ffn_up_shexp=(N_FFN_EXPERT, N_EMBD),
    ffn_down_shexp=(N_EMBD, N_FFN_EXPERT),
)
LATENT_ATTENTION = weights(
    attn_q_a=(Q_RANK, N_EMBD),
    attn_q_a_norm=(Q_RANK,),
    attn_q_b=(N_HEADS * (SIZE + N_ROT), Q_RANK),
    attn_kv_a_mqa=(KV_RANK + N_ROT, N_EMBD),
    attn_kv_a_norm=(KV_RANK,),
    attn_k_b=(N_HEADS, KV_RANK, SIZE),
    attn_v_b=(N_HEADS, SIZE, KV_RANK),
    attn_output=(N_EMBD, N_HEADS * SIZE),
)
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
MAMBA_NORMS = weights(ssm_dt_norm=(DT_RANK,), ssm_b_norm=(D_STATE,), ssm_c_norm=(D_STATE,))
N_GROUPS = 2
CONVOLVED = D_INNER + 2 * N_GROUPS * D_STATE
MAMBA2: Shapes = {
    "ssm_in.weight": (D_INNER + CONVOLVED + DT_RANK, N_EMBD),
    "ssm_conv1d.weight": (CONVOLVED, D_CONV),
    "ssm_conv1d.bias": (CONVOLVED,),
    "ssm_dt.bias": (DT_RANK,),
    "ssm_a": (DT_RANK, 1),
    "ssm_d": (DT_RANK, 1),
    "ssm_norm.weight": (N_GROUPS, D_INNER // N_GROUPS),
    "ssm_out.weight": (N_EMBD, D_INNER),
}
DELTA_HEADS, DELTA_GROUPS, DELTA_SIZE = 4, 2, 16
DELTA_VALUES = DELTA_HEADS * DELTA_SIZE
DELTA_CONV = DELTA_VALUES + 2 * DELTA_GROUPS * DELTA_SIZE
DELTA_NET: Shapes = {
    "attn_qkv.weight": (DELTA_CONV, N_EMBD),
    "attn_gate.weight": (DELTA_VALUES, N_EMBD),
    "ssm_conv1d.weight": (DELTA_CONV, D_CONV),
    "ssm_dt.bias": (DELTA_HEADS,),
    "ssm_a": (DELTA_HEADS,),
    "ssm_beta.weight": (DELTA_HEADS, N_EMBD),
    "ssm_alpha.weight": (DELTA_HEADS, N_EMBD),
    "ssm_norm.weight": (DELTA_SIZE,),
    "ssm_out.weight": (N_EMBD, DELTA_VALUES),
}
SHORT_CONVOLUTION: Shapes = {
    "shortconv.conv.weight": (N_EMBD, D_CONV),
    "shortconv.in_proj.weight": (3 * N_EMBD, N_EMBD),
    "shortconv.out_proj.weight": (N_EMBD, N_EMBD),
}
PER_LAYER = weights(inp_gate=(N_PER_LAYER, N_EMBD), proj=(N_EMBD, N_PER_LAYER), post_norm=(N_EMBD,))
GEMMA = NORM | ATTENTION | QK_NORM | POST_NORM | FEED_FORWARD | weights(post_ffw_norm=(N_EMBD,))

HEADS = {
    "attention.head_count": N_HEADS,
    "attention.head_count_kv": N_KV_HEADS,
    "attention.key_length": SIZE,
    "attention.value_length": SIZE,
    "rope.dimension_count": SIZE,
    "feed_forward_length": N_FFN,
}
MIXTURE = {
    "expert_count": N_EXPERTS,
    "expert_used_count": N_USED,
    "expert_feed_forward_length": N_FFN_EXPERT,
}
SSM = {
    "ssm.conv_kernel": D_CONV,
    "ssm.inner_size": D_INNER,
    "ssm.state_size": D_STATE,
    "ssm.time_step_rank": DT_RANK,
}
SLIDING = {"attention.sliding_window": WINDOW}
IN_TURN = [0, N_KV_HEADS] * (N_LAYERS // 2)  # key-value heads: each second layer has attention

QWEN3 = Kind("qwen3", [NORM | ATTENTION | QK_NORM | FEED_FORWARD] * N_LAYERS, HEADS)
QWEN3_MOE = Kind("qwen3moe", [NORM | ATTENTION | QK_NORM | FFN_NORM | EXPERTS] * N_LAYERS, HEADS | MIXTURE)
GEMMA3 = Kind("gemma3", [GEMMA] * 7, HEADS | SLIDING)  # each sixth layer attends to all tokens
GEMMA4 = Kind(  # of layers with a window and without the last two have no keys and values of their own
    "gemma4",
    [GEMMA | PER_LAYER] * 6,
    HEADS
    | SLIDING
    | {
        "attention.sliding_window_pattern": [True, False, True, False, True, False],
        "attention.shared_kv_layers": 2,
        "attention.key_length_swa": SIZE,
        "attention.value_length_swa": SIZE,
        "embedding_length_per_layer_input": N_PER_LAYER,
    },
    OUTPUT_NORM
    | weights(
        per_layer_token_embd=(0, 6 * N_PER_LAYER),
        per_layer_model_proj=(6 * N_PER_LAYER, N_EMBD),
        per_layer_proj_norm=(N_PER_LAYER,),
        rope_freqs=(SIZE // 2,),
    ),
)
GPT_OSS = Kind(  # each second layer has a window; heads have sinks
    "gpt-oss",
    [
        NORM
        | ATTENTION
        | weights(attn_sinks=(N_HEADS,))
        | {"attn_output.bias": (N_EMBD,)}
        | POST_NORM
        | EXPERTS
        | EXPERT_BIASES
    ]
    * N_LAYERS,
    HEADS | MIXTURE | SLIDING,
    OUTPUT_NORM | weights(output=(0, N_EMBD)),
)
DEEPSEEK2 = Kind(  # one latent vector instead of keys and values
    "deepseek2",
    [NORM | LATENT_ATTENTION | FEED_FORWARD]
    + [NORM | LATENT_ATTENTION | FFN_NORM | EXPERTS | SHARED_EXPERT] * (N_LAYERS - 1),
    HEADS
    | MIXTURE
    | {
        "attention.head_count_kv": 1,
        "attention.key_length": KV_RANK + N_ROT,
        "attention.value_length": KV_RANK,
        "attention.key_length_mla": SIZE + N_ROT,
        "attention.value_length_mla": SIZE,
        "attention.q_lora_rank": Q_RANK,
        "attention.kv_lora_rank": KV_RANK,
        "rope.dimension_count": N_ROT,
        "leading_dense_block_count": 1,
        "expert_shared_count": 1,
        "expert_weights_scale": 1.0,
    },
)
INDEXER: Shapes = {
    "indexer.k_norm.weight": (INDEX,),
    "indexer.k_norm.bias": (INDEX,),
    "indexer.proj.weight": (N_INDEXERS, N_EMBD),
    "indexer.attn_k.weight": (INDEX, N_EMBD),
    "indexer.attn_q_b.weight": (N_INDEXERS * INDEX, Q_RANK),
}
INDEXED = {"attention.indexer.head_count": N_INDEXERS, "attention.indexer.key_length": INDEX}
DEEPSEEK32 = Kind(  # each token attends to those that an indexer chooses
    "deepseek32",
    [layer | INDEXER for layer in DEEPSEEK2.layers[:2]],
    {**DEEPSEEK2.fields, **INDEXED, "attention.indexer.top_k": WINDOW, "expert_gating_func": 2},
)
COMPRESSED_ATTENTION = weights(
    attn_sinks=(N_HEADS,),
    attn_q_a=(Q_RANK, N_EMBD),
    attn_q_a_norm=(Q_RANK,),
    attn_q_b=(N_HEADS * WIDE, Q_RANK),
    attn_kv=(WIDE, N_EMBD),
    attn_kv_a_norm=(WIDE,),
    attn_output_a=(2 * OUT_RANK, N_HEADS * WIDE // 2),
    attn_output_b=(N_EMBD, 2 * OUT_RANK),
)
HYPER = weights(
    hc_attn_fn=(MIXED, STREAMS * N_EMBD),
    hc_attn_base=(MIXED,),
    hc_attn_scale=(3,),
    hc_ffn_fn=(MIXED, STREAMS * N_EMBD),
    hc_ffn_base=(MIXED,),
    hc_ffn_scale=(3,),
)
COMPRESSOR = weights(
    attn_compressor_kv=(2 * WIDE, N_EMBD),
    attn_compressor_gate=(2 * WIDE, N_EMBD),
    attn_compressor_ape=(4, 2 * WIDE),
    attn_compressor_norm=(WIDE,),
    indexer_compressor_kv=(2 * INDEX, N_EMBD),
    indexer_compressor_gate=(2 * INDEX, N_EMBD),
    indexer_compressor_ape=(4, 2 * INDEX),
    indexer_compressor_norm=(INDEX,),
) | {"indexer.proj.weight": (N_INDEXERS, N_EMBD), "indexer.attn_q_b.weight": (N_INDEXERS * INDEX, Q_RANK)}
HCA = weights(
    attn_compressor_kv=(WIDE, N_EMBD),
    attn_compressor_gate=(WIDE, N_EMBD),
    attn_compressor_ape=(128, WIDE),
    attn_compressor_norm=(WIDE,),
)
BIASED = {"exp_probs_b.bias": (N_EXPERTS,)}
DEEPSEEK4_LAYER = NORM | COMPRESSED_ATTENTION | HYPER | FFN_NORM | EXPERTS | SHARED_EXPERT | BIASED
DEEPSEEK4 = Kind(
    "deepseek4",
    [DEEPSEEK4_LAYER, DEEPSEEK4_LAYER | COMPRESSOR, DEEPSEEK4_LAYER | HCA, DEEPSEEK4_LAYER | COMPRESSOR],
    HEADS
    | MIXTURE
    | SLIDING
    | INDEXED
    | {
        "attention.head_count_kv": 1,
        "attention.key_length": WIDE,
        "attention.value_length": WIDE,
        "rope.dimension_count": N_ROT,
        "attention.q_lora_rank": Q_RANK,
        "expert_shared_count": 1,
        "expert_weights_scale": 1.5,
        "expert_weights_norm": True,
        "expert_gating_func": 4,
        "swiglu_clamp_exp": [7.0] * 4,
        "attention.indexer.top_k": 16,
        "attention.output_group_count": 2,
        "attention.output_lora_rank": OUT_RANK,
        "attention.compress_rope_freq_base": 10000.0,
        "attention.compress_ratios": [0, 4, 128, 4],
        "hyper_connection.count": STREAMS,
        "hyper_connection.sinkhorn_iterations": 3,
        "hyper_connection.epsilon": 1e-6,
        "hash_layer_count": 0,
    },
    OUTPUT_NORM
    | weights(
        output=(0, N_EMBD),
        output_hc_fn=(STREAMS, STREAMS * N_EMBD),
        output_hc_base=(STREAMS,),
        output_hc_scale=(1,),
    ),
)
MAMBA_ONLY = Kind(
    "mamba", [NORM | MAMBA] * N_LAYERS, SSM | {"feed_forward_length": 0, "attention.head_count": 0}
)
JAMBA = Kind(
    "jamba",
    [NORM | MAMBA | MAMBA_NORMS | FEED_FORWARD, NORM | ATTENTION | FEED_FORWARD] * (N_LAYERS // 2),
    HEADS | SSM | {"attention.head_count_kv": IN_TURN},
)
GRANITE_HYBRID = Kind(
    "granitehybrid",
    [NORM | MAMBA2 | FEED_FORWARD, NORM | ATTENTION | FEED_FORWARD] * (N_LAYERS // 2),
    HEADS | SSM | {"attention.head_count_kv": IN_TURN, "ssm.group_count": N_GROUPS},
)
QWEN35 = Kind(  # each fourth layer has attention, the others gated delta nets; positions in sections
    "qwen35",
    [NORM | POST_NORM | DELTA_NET | FFN] * (N_LAYERS - 1)
    + [NORM | POST_NORM | ATTENTION | QK_NORM | FFN | weights(attn_q=(2 * N_HEADS * SIZE, N_EMBD))],
    HEADS
    | {
        "rope.dimension_sections": [3, 3, 2, 0],
        "ssm.conv_kernel": D_CONV,
        "ssm.inner_size": DELTA_VALUES,
        "ssm.state_size": DELTA_SIZE,
        "ssm.time_step_rank": DELTA_HEADS,
        "ssm.group_count": DELTA_GROUPS,
    },
)
QWEN35_BLOCK = QWEN35._replace(
    layers=[
        *QWEN35.layers,
        QWEN35.layers[-1]
        | {"nextn.eh_proj.weight": (N_EMBD, 2 * N_EMBD)}
        | weights(**{"nextn.enorm": (N_EMBD,), "nextn.hnorm": (N_EMBD,)}),
    ],
    fields={**QWEN35.fields, "nextn_predict_layers": 1},
)
LFM2 = Kind(
    "lfm2",
    [NORM | SHORT_CONVOLUTION | FEED_FORWARD, NORM | ATTENTION | QK_NORM | FEED_FORWARD] * (N_LAYERS // 2),
    HEADS | {"attention.head_count_kv": IN_TURN, "shortconv.l_cache": D_CONV},
    weights(token_embd_norm=(N_EMBD,)),
)
LFM2_WINDOW = LFM2._replace(fields={**LFM2.fields, **SLIDING})
BIDIRECTIONAL = weights(
    attn_q=(N_EMBD, N_EMBD),
    attn_k=(N_EMBD, N_EMBD),
    attn_v=(N_EMBD, N_EMBD),
    attn_output=(N_EMBD, N_EMBD),
    attn_output_norm=(N_EMBD,),
    ffn_up=(N_FFN, N_EMBD),
    ffn_down=(N_EMBD, N_FFN),
    layer_output_norm=(N_EMBD,),
) | {"attn_output_norm.bias": (N_EMBD,), "layer_output_norm.bias": (N_EMBD,)}
RANKING = {"pooling_type": 4}
BERT_RANKER = Kind(  # a head of two layers over the first token
    "bert",
    [BIDIRECTIONAL] * 2,
    RANKING
    | {
        "attention.head_count": N_HEADS,
        "feed_forward_length": N_FFN,
        "attention.layer_norm_epsilon": 1e-5,
        "attention.causal": False,
        "tokenizer.ggml.token_type_count": 2,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": True,
    },
    weights(
        token_types=(2, N_EMBD),
        position_embd=(N_CTX, N_EMBD),
        token_embd_norm=(N_EMBD,),
        cls=(N_EMBD, N_EMBD),
        **{"cls.output": (1, N_EMBD)},
    )
    | {"token_embd_norm.bias": (N_EMBD,), "cls.bias": (N_EMBD,), "cls.output.bias": (1,)},
)
QWEN3_RANKER = QWEN3._replace(  # says yes or no after a prompt
    fields=HEADS
    | RANKING
    | {
        "classifier.output_labels": ["yes", "no"],
        "tokenizer.chat_template.rerank": "Query: {query}\nDocument: {document}\nAnswer:",
    },
    others=OUTPUT_NORM | weights(**{"cls.output": (2, N_EMBD)}),
)
KINDS = {
    "qwen3": QWEN3,
    "qwen3moe": QWEN3_MOE,
    "gemma3": GEMMA3,
    "gemma4": GEMMA4,
    "gpt-oss": GPT_OSS,
    "deepseek2": DEEPSEEK2,
    "deepseek32": DEEPSEEK32,
    "deepseek4": DEEPSEEK4,
    "mamba": MAMBA_ONLY,
    "jamba": JAMBA,
    "granitehybrid": GRANITE_HYBRID,
    "qwen35": QWEN35,
    "lfm2": LFM2,
    "lfm2-window": LFM2_WINDOW,
}
