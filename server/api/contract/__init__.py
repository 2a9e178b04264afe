"""openapi.yaml, made of the models of requests, the shapes of answers and the table of operations."""
