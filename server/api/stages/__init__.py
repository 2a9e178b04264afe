"""Prepare a request for the engine, in five stages that pass on one value, a Prompted.

validate → render → tokenize → constrain → submit, which also combines the stages.
"""
