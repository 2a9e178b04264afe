"""Write a checkpoint as GGUF: Q8_0 matrices, F32 norms, tokenizer and chat template.

python export_gguf.py target run/target.npz tokenizer.json duo-tiny-q8_0.gguf
python export_gguf.py draft  run/draft.npz  tokenizer.json duo-tiny-draft-q8_0.gguf
"""

import json, os, sys
import numpy as np, gguf

# the same table as in model.py
CONFIGS = {
    "target": dict(dim=512, layers=8, heads=8, kv_heads=4, ffn=1408),
    "draft": dict(dim=256, layers=4, heads=4, kv_heads=2, ffn=640),
}
CONTROL = {
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|fim_prefix|>",
    "<|fim_suffix|>",
    "<|fim_middle|>",
}


def main():
    which, ckpt, tokfile, out = sys.argv[1:5]
    quant = sys.argv[5] if len(sys.argv) > 5 else "q8_0"
    c = CONFIGS[which]
    w = {k: v.astype(np.float32) for k, v in np.load(ckpt).items()}
    g = gguf.GGUFWriter(out, "llama")
    g.add_name("duo-tiny" if which == "target" else "duo-tiny-draft")
    g.add_description(
        "A very small chat model about the Python language, made to demonstrate duo."
        if which == "target"
        else "The draft model of duo-tiny for speculative decoding."
    )
    g.add_license("apache-2.0")
    g.add_languages(["en"])
    g.add_size_label("28M" if which == "target" else "5M")
    g.add_context_length(4096), g.add_embedding_length(c["dim"]), g.add_block_count(c["layers"])
    g.add_feed_forward_length(c["ffn"]), g.add_head_count(c["heads"]), g.add_head_count_kv(c["kv_heads"])
    g.add_rope_dimension_count(64), g.add_rope_freq_base(10000.0), g.add_layer_norm_rms_eps(1e-5)
    g.add_vocab_size(8192)
    g.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0 if quant == "q8_0" else gguf.LlamaFileType.MOSTLY_F16)
    g.add_quantization_version(gguf.GGML_QUANT_VERSION)

    t = json.load(open(tokfile))
    vocab = sorted(t["model"]["vocab"].items(), key=lambda kv: kv[1])
    assert [i for _, i in vocab] == list(range(8192))
    added = {a["content"] for a in t["added_tokens"]}
    types = [
        gguf.TokenType.CONTROL
        if s in CONTROL
        else gguf.TokenType.USER_DEFINED
        if s in added
        else gguf.TokenType.NORMAL
        for s, _ in vocab
    ]
    ids = dict(vocab)
    g.add_tokenizer_model("gpt2"), g.add_tokenizer_pre("qwen2")
    g.add_token_list([s for s, _ in vocab]), g.add_token_types(types)
    g.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in t["model"]["merges"]])
    (
        g.add_bos_token_id(ids["<|endoftext|>"]),
        g.add_eos_token_id(ids["<|im_end|>"]),
        g.add_eot_token_id(ids["<|im_end|>"]),
    )
    g.add_pad_token_id(ids["<|endoftext|>"]), g.add_add_bos_token(False), g.add_add_eos_token(False)
    for short, name in (("pre", "prefix"), ("suf", "suffix"), ("mid", "middle")):
        g.add_uint32(f"tokenizer.ggml.fim_{short}_token_id", ids[f"<|fim_{name}|>"])
    g.add_chat_template(
        open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "chat_template.jinja")).read()
    )

    kind = gguf.GGMLQuantizationType.Q8_0 if quant == "q8_0" else gguf.GGMLQuantizationType.F16
    for k in sorted(w, key=lambda k: (k.startswith("blk"), k)):
        a = w[k]
        if a.ndim == 1:
            g.add_tensor(k, a.astype(np.float32))
        else:
            g.add_tensor(k, gguf.quants.quantize(a, kind), raw_dtype=kind)
    g.write_header_to_file(), g.write_kv_data_to_file(), g.write_tensors_to_file(), g.close()
    print(out, os.path.getsize(out))


if __name__ == "__main__":
    main()
