"""How the next token is chosen."""

from __future__ import annotations

from dataclasses import dataclass, replace

ORDER = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
"""The samplers in llama.cpp's default order, by llama.cpp's names."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Names, meanings and neutral values as in llama.cpp. The first five fields are those a drafter mirrors.

    temperature 0 is argmax; top_k 0, top_p 1, min_p 0, typical_p 1 and top_n_sigma <= 0 switch the filter
    off; seed is 64 bits. repeat_last_n and dry_penalty_last_n: how many of the last tokens count, 0 none, -1
    all of them. dry_sequence_breakers: token sequences a repetition may not cross. logit_bias: (token id,
    value added to its logit), -inf bans it. banned_first: tokens that may not be chosen before min_tokens
    are generated. samplers: which ones run, in this order; others do not.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    seed: int = 0
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[tuple[int, ...], ...] = ()
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    banned_first: frozenset[int] = frozenset()
    samplers: tuple[str, ...] = ORDER

    def mirrored(self) -> SamplingParams:
        """What of it a drafter hears about: the rest does not travel."""
        return SamplingParams(self.temperature, self.top_k, self.top_p, self.min_p, self.seed)

    def reseeded(self, seed: int) -> SamplingParams:
        """The same with another seed (for the other choices of one request)."""
        return replace(self, seed=seed % (1 << 64))
