"""Kinds of models with prediction blocks of the rarer forms, each as small as it can be."""

from __future__ import annotations

from tests.model.kinds import (
    ATTENTION,
    FEED_FORWARD,
    HEADS,
    N_EMBD,
    N_FFN,
    N_FFN_EXPERT,
    N_HEADS,
    N_LAYERS,
    NORM,
    OUTPUT_NORM,
    QK_NORM,
    SIZE,
    SLIDING,
    Kind,
    weights,
)

GATED = NORM | ATTENTION | QK_NORM | FEED_FORWARD | weights(attn_gate=(N_HEADS, N_EMBD))
STEP35 = Kind(  # three blocks, one for each depth; each second layer has a window
    "step35",
    [GATED] * N_LAYERS
    + [
        GATED
        | {"nextn.eh_proj.weight": (N_EMBD, 2 * N_EMBD)}
        | weights(**{"nextn.enorm": (N_EMBD,), "nextn.hnorm": (N_EMBD,)})
    ]
    * 3,
    HEADS
    | SLIDING
    | {
        "attention.sliding_window_pattern": [False, True] * (N_LAYERS // 2) + [True, False, True],
        "rope.freq_base_swa": 10000.0,
        "expert_feed_forward_length": N_FFN_EXPERT,
        "nextn_predict_layers": 3,
    },
    OUTPUT_NORM | weights(output=(0, N_EMBD)),
)
N_ASSISTANT = N_EMBD // 2
GEMMA4_ASSISTANT = Kind(  # of GEMMA4, whose last two layers' keys and values it reads
    "gemma4-assistant",
    [
        weights(
            attn_norm=(N_ASSISTANT,),
            attn_q=(N_HEADS * SIZE, N_ASSISTANT),
            attn_q_norm=(SIZE,),
            attn_output=(N_ASSISTANT, N_HEADS * SIZE),
            post_attention_norm=(N_ASSISTANT,),
            ffn_norm=(N_ASSISTANT,),
            ffn_gate=(N_FFN, N_ASSISTANT),
            ffn_up=(N_FFN, N_ASSISTANT),
            ffn_down=(N_ASSISTANT, N_FFN),
            post_ffw_norm=(N_ASSISTANT,),
            layer_output_scale=(1,),
        )
    ]
    * 2,
    HEADS
    | SLIDING
    | {
        "embedding_length": N_ASSISTANT,
        "embedding_length_out": N_EMBD,
        "nextn_predict_layers": 2,
        "attention.sliding_window_pattern": [True, False],
        "attention.shared_kv_layers": 2,
        "attention.key_length_swa": SIZE,
        "attention.value_length_swa": SIZE,
    },
    weights(
        token_embd=(0, N_ASSISTANT),
        output_norm=(N_ASSISTANT,),
        rope_freqs=(SIZE // 2,),
        **{
            "nextn.pre_projection": (N_ASSISTANT, 2 * N_EMBD),
            "nextn.post_projection": (N_EMBD, N_ASSISTANT),
        },
    ),
)
N_BLOCK, DFLASH_LAYERS, MARKOV_RANK = 4, [0, 2], 8  # tokens of a block, layers of the target that are read
DFLASH = Kind(  # of QWEN3
    "dflash",
    [NORM | ATTENTION | QK_NORM | FEED_FORWARD] * 2,
    HEADS | {"target_layers": DFLASH_LAYERS, "block_size": N_BLOCK, "tokenizer.ggml.mask_token_id": 3},
    OUTPUT_NORM | weights(fc=(N_EMBD, len(DFLASH_LAYERS) * N_EMBD), **{"enc.output_norm": (N_EMBD,)}),
)
DSPARK = DFLASH._replace(
    others=DFLASH.others | weights(markov_w1=(0, MARKOV_RANK), markov_w2=(0, MARKOV_RANK))
)
