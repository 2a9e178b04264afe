"""Quantise a GGUF file of F16 weights by llama.cpp.

    python quantise.py IN.gguf OUT.gguf [type of the layers] [type of the embedding]
"""
import os, sys
import llama_cpp as C

layers, embedding = (sys.argv[3:] + ["Q6_K", "Q6_K"])[:2] if len(sys.argv) != 4 else (sys.argv[3], sys.argv[3])
params = C.llama_model_quantize_default_params()
params.ftype = getattr(C, f"LLAMA_FTYPE_MOSTLY_{layers}")
params.token_embedding_type = params.output_tensor_type = getattr(C, f"GGML_TYPE_{embedding}")
C.llama_backend_init()
sys.exit(C.llama_model_quantize(os.fsencode(sys.argv[1]), os.fsencode(sys.argv[2]), params))
