"""What the engine is asked to do. Token ids only: text lives outside the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from server.sampling.constraint import Constraint
from server.sampling.params import SamplingParams

Exactness: TypeAlias = Literal["default", "width-stable"]


@dataclass(frozen=True, slots=True)
class Speculation:
    """What one request says about drafts. None is the server's default.

    n_max: most drafted tokens verified per step, 0 none; n_min: fewer are not verified; p_min: guesses on
    paths less likely than this are left out; drafters: only guesses of these (ids, or names without the part
    after the host); prediction: what the client expects the reply to be. exactness "width-stable": every
    step has one width, so that the bits do not depend on drafts. salt: lookups know texts of this salt only.
    """

    n_max: int | None = None
    n_min: int = 0
    p_min: float = 0.0
    exactness: Exactness | None = None
    drafters: frozenset[str] | None = None
    prediction: tuple[int, ...] = ()
    salt: str = ""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One completion to generate.

    prompt: token ids, at least one. max_tokens: None generates until the context ends. stop_tokens: ids that
    end the generation; such a token is in the last `Committed` event, never in the text. constraint: makes a
    new grammar state. n_logprobs: likeliest tokens to report beside the chosen one (0 to 20), None for no
    logprobs. n_keep: a reply that reaches the end of the context goes on, half of the tokens after the first
    n_keep dropped; None: it ends there. n_beams > 1: search for the likeliest reply instead of drawing one
    (beams.py); not together with n_keep. salt: only requests of one salt share what is cached. slot: the only
    place for it; None: any. reuse: nothing that is cached is used for it if false. drawn_from: logprobs are
    those of the distribution that the token was drawn from, not the model's. progress: it is told how far the
    prompt is evaluated. prompt_logprobs: logprobs of the prompt are told, too; not together with reuse or
    n_beams. precompute: only evaluate the prompt, while no reply is asked for; it is cancelled as soon as one
    is. patient: it waits in the queue while replies are generated, and is cancelled only once it has begun.
    tenant: whose share of the slots it takes (tenants.py).
    """

    prompt: Sequence[int]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None
    stop_tokens: frozenset[int] = frozenset()
    speculation: Speculation = field(default_factory=Speculation)
    constraint: Callable[[], Constraint] | None = None
    n_logprobs: int | None = None
    n_keep: int | None = None
    n_beams: int = 1
    salt: str = ""
    slot: int | None = None
    reuse: bool = True
    drawn_from: bool = False
    progress: bool = False
    prompt_logprobs: bool = False
    precompute: bool = False
    patient: bool = False
    tenant: str = ""
    logprobs_of: tuple[int, ...] = ()
    """Tokens whose logprobs are reported beside the chosen one, in place of the likeliest."""
    told: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What GET /slots tells of the request beside its sampling."""
