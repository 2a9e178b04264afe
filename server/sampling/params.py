"""Parameters of sampling, and the order of its steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

# llama.cpp's names and default order
ORDER = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
KNOWN = (*ORDER, "infill")
MIRRORED = ("top_k", "top_p", "min_p", "temperature")  # the samplers of draw(), in its order


class Pieces(Protocol):
    """The part of a vocabulary that samplers read."""

    eos: int | None
    eog: frozenset[int]

    def piece(self, token: int, *, special: bool = False) -> bytes: ...


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters of one request, as llama.cpp defines them. Drafters get the first five fields."""

    temperature: float = 0.8  # 0: argmax
    top_k: int = 40  # 0: off
    top_p: float = 0.95  # 1: off
    min_p: float = 0.05  # 0: off
    seed: int = 0  # 64 bits
    typical_p: float = 1.0  # 1: off
    top_n_sigma: float = -1.0  # 0 or less: off
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64  # last tokens that count; -1: all
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1  # last tokens that count; -1: all
    dry_sequence_breakers: tuple[tuple[int, ...], ...] = ()  # token sequences that no repetition crosses
    mirostat: int = 0  # version 1 or 2; 0: off
    mirostat_tau: float = 5.0  # target surprise, in bits
    mirostat_eta: float = 0.1  # learning rate
    logit_bias: tuple[tuple[int, float], ...] = ()  # token ids and values added to their logits; -inf bans
    min_tokens: int = 0
    banned_first: frozenset[int] = frozenset()  # tokens that must not come before min_tokens are generated
    samplers: tuple[str, ...] = ORDER  # samplers that run, in this order
    pieces: Pieces | None = None  # texts of the vocabulary's tokens, for infill

    @property
    def is_plain(self) -> bool:
        """True if only the first five fields have an effect, so that draw() alone can draw each token."""
        if self.logit_bias or self.mirostat or (self.min_tokens > 0 and self.banned_first):
            return False
        wanted = tuple(name for name in MIRRORED if self._has_effect(name))
        return self.dynatemp_range <= 0.0 and self.steps() == wanted

    def steps(self) -> tuple[str, ...]:
        """Return the samplers of the chain that have an effect, in order; mirostat replaces the chain."""
        return tuple(name for name in self.samplers if self._has_effect(name))

    def _has_effect(self, name: str) -> bool:
        match name:
            case "penalties":
                penalties = (self.repeat_penalty, self.presence_penalty, self.frequency_penalty)
                return self.repeat_last_n != 0 and penalties != (1.0, 0.0, 0.0)
            case "dry":
                return self.dry_multiplier != 0.0 and self.dry_base >= 1.0 and self.dry_penalty_last_n != 0
            case "top_n_sigma":
                return self.top_n_sigma > 0.0
            case "top_k":
                return self.top_k > 0
            case "typ_p":
                return self.typical_p < 1.0
            case "top_p":
                return self.top_p < 1.0
            case "min_p":
                return self.min_p > 0.0
            case "xtc":
                return self.xtc_probability > 0.0 and self.xtc_threshold <= 0.5
            case "temperature":
                return self.temperature != 1.0 or self.dynatemp_range > 0.0
            case "infill":
                return self.pieces is not None
            case _:
                raise ValueError(f"no sampler is called {name}")

    def mirrored(self) -> SamplingParams:
        """Return the parameters that are sent to drafters: the first five fields, defaults for others."""
        return SamplingParams(self.temperature, self.top_k, self.top_p, self.min_p, self.seed)

    def reseeded(self, seed: int) -> SamplingParams:
        """Return a copy with another seed, modulo 2^64. Each choice of a request (n > 1) has its own seed."""
        return replace(self, seed=seed % (1 << 64))
