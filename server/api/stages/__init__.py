"""A request on its way to the engine, in five stages that hand on one value, a Prompted.

validate → render → tokenize → constrain → submit, which puts them together.
"""
