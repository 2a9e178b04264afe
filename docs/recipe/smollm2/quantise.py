"""Quantise a GGUF file of F16 weights by llama.cpp: layers and embedding in Q6_K.   python quantise.py IN.gguf OUT.gguf"""
import os, sys
import llama_cpp as C

params = C.llama_model_quantize_default_params()
params.ftype = C.LLAMA_FTYPE_MOSTLY_Q6_K
params.token_embedding_type = params.output_tensor_type = C.GGML_TYPE_Q6_K
C.llama_backend_init()
sys.exit(C.llama_model_quantize(os.fsencode(sys.argv[1]), os.fsencode(sys.argv[2]), params))
