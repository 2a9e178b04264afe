"""What the engine is asked to do. Token ids only: text lives outside the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from server.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One completion to generate.

    prompt: token ids, at least one. max_tokens: None generates until the context ends. stop_tokens: ids
    that end the generation; such a token is reported in the last `Committed` event, never as text.
    draft_max: upper bound on drafted tokens verified per step; None is the server's default, 0 none.
    """

    prompt: Sequence[int]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None
    stop_tokens: frozenset[int] = frozenset()
    draft_max: int | None = None
