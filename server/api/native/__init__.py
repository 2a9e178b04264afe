"""POST /completion, llama-server's own form."""
