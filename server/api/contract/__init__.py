"""Generates openapi.yaml from the models of requests, the shapes of answers and the table of operations."""
