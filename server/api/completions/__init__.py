"""POST /v1/completions, the legacy form."""
