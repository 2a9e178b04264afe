"""Write the draft as GGUF with the tokenizer, special tokens and template of its target.

    python export.py TARGET.gguf draft.npz OUT.gguf [q8_0] [type of the embedding: q8_0, q4_0 ...]
"""
import os, sys
import numpy as np, gguf


def metadata(g, source, template=True):
    """Everything of the target's file that concerns tokens."""
    for name, field in source.fields.items():
        if name.startswith("tokenizer.") and (template or name != "tokenizer.chat_template"):
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            g.add_key_value(name, field.contents(), field.types[0], sub_type=inner)


def main():
    target, npz, out = sys.argv[1:4]
    kinds = [getattr(gguf.GGMLQuantizationType, a.upper()) for a in (sys.argv[4:] + ["q8_0", "q8_0"])[:2]] if len(sys.argv) < 6 else \
        [getattr(gguf.GGMLQuantizationType, a.upper()) for a in sys.argv[4:6]]
    source = gguf.GGUFReader(target)
    w = {k: v.astype(np.float32) for k, v in np.load(npz).items()}
    V, d = w["token_embd.weight"].shape
    layers = 1 + max(int(k.split(".")[1]) for k in w if k.startswith("blk."))
    g = gguf.GGUFWriter(out, "llama")
    g.add_name(f"SmolLM2-135M-Instruct {'small ' if d < 256 else ''}draft")
    g.add_description("A draft model for SmolLM2-135M-Instruct (Q4_1), distilled from its own conversations, for speculative decoding.")
    g.add_license("apache-2.0"), g.add_languages(["en"])
    g.add_size_label(f"{sum(a.size for a in w.values()) / 1e6:.0f}M")
    g.add_context_length(8192), g.add_embedding_length(d), g.add_block_count(layers)
    g.add_feed_forward_length(w["blk.0.ffn_up.weight"].shape[0])
    g.add_head_count(w["blk.0.attn_q.weight"].shape[0] // 64), g.add_head_count_kv(w["blk.0.attn_k.weight"].shape[0] // 64)
    g.add_key_length(64), g.add_value_length(64)
    g.add_rope_dimension_count(64), g.add_rope_freq_base(100000.0), g.add_layer_norm_rms_eps(1e-5), g.add_vocab_size(V)
    g.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0 if kinds[0] == gguf.GGMLQuantizationType.Q8_0 else gguf.LlamaFileType.MOSTLY_Q4_0)
    g.add_quantization_version(gguf.GGML_QUANT_VERSION)
    metadata(g, source)
    for name in sorted(w, key=lambda k: (k.startswith("blk"), k)):
        a = w[name]
        if a.ndim == 1:
            g.add_tensor(name, a)
        else:
            q = kinds[1] if name == "token_embd.weight" else kinds[0]
            g.add_tensor(name, gguf.quants.quantize(a, q), raw_dtype=q)
    g.write_header_to_file(), g.write_kv_data_to_file(), g.write_tensors_to_file(), g.close()
    print(out, os.path.getsize(out))


if __name__ == "__main__":
    main()
