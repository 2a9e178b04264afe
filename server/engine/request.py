"""Requests to the engine, in token ids: text exists only outside the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from server.sampling.constraint import Constraint
from server.sampling.params import SamplingParams

Exactness: TypeAlias = Literal["default", "width-stable"]


@dataclass(frozen=True, slots=True)
class Speculation:
    """Settings of a request about drafts; None is the server's default."""

    n_max: int | None = None  # maximum drafted tokens verified per step; 0: none
    n_min: int = 0  # minimum drafted tokens per step; if there are fewer, none is verified
    p_min: float = 0.0  # minimum probability of a guess's path
    # "width-stable": all steps have equal numbers of rows, so no bit depends on drafts
    exactness: Exactness | None = None
    # use only guesses of these drafters, given by id (HOST-PID-RANDOM) or by HOST
    drafters: frozenset[str] | None = None
    prediction: tuple[int, ...] = ()  # the reply that the client expects
    salt: str = ""  # lookups use texts of this salt only


class PictureSpan(NamedTuple):
    """Positions of a picture in a prompt, from `start` to before `end`."""

    start: int
    end: int
    whole: tuple[tuple[int, int], ...]  # (start, end) of positions that one decode must evaluate together
    picture: object  # keeps the picture known while the span exists


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One completion to generate."""

    prompt: Sequence[int]  # token ids, at least one
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None  # None: until the context ends
    # ids that end the generation; the last Committed event contains the ending token, the text does not
    stop_tokens: frozenset[int] = frozenset()
    speculation: Speculation = field(default_factory=Speculation)
    constraint: Callable[[], Constraint] | None = None  # returns a new state of the reply's grammar
    # number of likeliest tokens to report beside the chosen one, 0 to 20; None: no logprobs
    n_logprobs: int | None = None
    n_keep: int | None = None  # if the context is full, drop half of the tokens after these; None: end
    n_beams: int = 1  # above 1: beam search (beams.py), not with n_keep
    salt: str = ""  # cached conversations are shared only among requests of one salt
    slot: int | None = None  # the slot that the request must have; None: any
    reuse: bool = True  # False: evaluate the whole prompt, whatever is cached
    drawn_from: bool = False  # report logprobs after the samplers instead of the model's
    progress: bool = False  # report how far the prompt is evaluated
    prompt_logprobs: bool = False  # report the prompt's logprobs; not with reuse or n_beams
    # tokens of the reply that another lead, or this one before a restart, committed; not with n_beams
    begun: tuple[int, ...] = ()
    mu: float | None = None  # mirostat's state after `begun`
    mus: list[float] | None = None  # list to which mirostat's state after each new token is appended
    precompute: bool = False  # only evaluate the prompt, and only until a reply is requested
    # with precompute: requests for replies cancel this one only if it has begun, not while it waits
    patient: bool = False
    tenant: str = ""  # the tenant whose share of the slots it takes (tenants.py)
    logprobs_of: tuple[int, ...] = ()
    """Tokens whose logprobs are reported in place of the likeliest ones."""
    pictures: Sequence[PictureSpan] = ()  # in order; none contains the prompt's last token
    request_fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields of the request that GET /slots shows, beside its sampling."""
