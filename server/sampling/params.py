"""How the next token is chosen: the part of a request that a drafter can mirror."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Names and order of application as in llama.cpp: top_k, top_p, min_p, then temperature.

    temperature 0 is argmax; top_k 0, top_p 1 and min_p 0 switch the filter off; seed is 64 bits.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    seed: int = 0
