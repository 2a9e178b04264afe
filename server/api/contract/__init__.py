"""Generate openapi.yaml from request models, answer shapes and the table of operations."""
