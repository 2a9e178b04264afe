"""POST /completion, llama-server's own format."""
