"""Write a trained EAGLE-3 head as GGUF, with the tokenizer of its target; embeddings and head are the target's.

    python export_eagle3.py duo-tiny-q8_0.gguf eagle3.npz duo-tiny-eagle3-q8_0.gguf
"""
import os, sys
import numpy as np, gguf

LAYERS = (2, 5, 7)                      # as in train_eagle3.py
OUTSIDE = {"fc.weight", "output_norm.weight"}


def main():
    target, npz, out = sys.argv[1:4]
    source = gguf.GGUFReader(target)
    of = lambda key: source.fields[f"llama.{key}"].contents()
    g = gguf.GGUFWriter(out, "eagle3")
    g.add_name("duo-tiny-eagle3")
    g.add_description("The EAGLE-3 head of duo-tiny for speculative decoding.")
    g.add_license("apache-2.0")
    g.add_context_length(of("context_length")), g.add_embedding_length(of("embedding_length")), g.add_block_count(1)
    g.add_feed_forward_length(of("feed_forward_length"))
    g.add_head_count(of("attention.head_count")), g.add_head_count_kv(of("attention.head_count_kv"))
    g.add_rope_dimension_count(of("rope.dimension_count")), g.add_rope_freq_base(of("rope.freq_base"))
    g.add_layer_norm_rms_eps(of("attention.layer_norm_rms_epsilon"))
    g.add_vocab_size(of("vocab_size"))
    g.add_array("eagle3.target_layers", list(LAYERS))
    g.add_uint32("eagle3.target_hidden_size", of("embedding_length"))
    g.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    g.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for name, field in source.fields.items():
        if name.startswith("tokenizer.") and name != "tokenizer.chat_template":
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            g.add_key_value(name, field.contents(), field.types[0], sub_type=inner)
    for name, a in np.load(npz).items():
        a = a.astype(np.float32)
        name = name if name in OUTSIDE else f"blk.0.{name}"
        if a.ndim == 1:
            g.add_tensor(name, a)
        else:
            q = gguf.GGMLQuantizationType.Q8_0
            g.add_tensor(name, gguf.quants.quantize(a, q), raw_dtype=q)
    g.write_header_to_file(), g.write_kv_data_to_file(), g.write_tensors_to_file(), g.close()
    print(out, os.path.getsize(out))


if __name__ == "__main__":
    main()
