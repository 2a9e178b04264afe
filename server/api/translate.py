"""From a validated body to what the engine is asked: text becomes tokens here, and names become ids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from server.api.sampling_fields import sampling_params
from server.api.schema import ChatRequest, Speculative, joined
from server.api.served import Served
from server.engine.request import GenerationRequest, Speculation
from server.errors import InvalidRequestError
from server.llama.backend import Vocabulary
from server.sampling.constraint import Constraint
from server.sampling.noise import mix


@dataclass(frozen=True, slots=True)
class Asked:
    """What a body asks for: the prompt's messages and text, and a request for each reply to generate."""

    messages: list[dict[str, Any]]
    text: str
    requests: list[GenerationRequest]


def generation_requests(served: Served, body: ChatRequest) -> Asked:
    """Requests differ in their seeds only. Raises InvalidRequestError. Slow for long prompts and grammars:
    not for the event loop."""
    messages = [message.for_template() for message in body.messages]
    text = served.template.render(messages)
    prompt = served.history.tokens_of(text, body.salt)
    first = GenerationRequest(
        prompt=prompt,
        sampling=sampling_params(body, served.defaults, served.vocabulary),
        max_tokens=body.max_new_tokens,
        stop_tokens=served.vocabulary.eog,
        speculation=_speculation(body, served.vocabulary),
        constraint=_constraint(served, body),
        n_logprobs=body.n_logprobs,
        n_keep=_n_keep(body, len(prompt), served.vocabulary) if body.context_shift else None,
        n_beams=max(1, body.n_beams),
        salt=body.salt,
    )
    if body.n_generated > body.n and first.n_logprobs is None:
        first = replace(first, n_logprobs=0)  # which are best is told by their logprobs
    sampling = first.sampling
    requests = [
        replace(first, sampling=sampling.reseeded(seed_of_choice(sampling.seed, c)))
        for c in range(body.n_generated)
    ]
    return Asked(messages, text, requests)


def seed_of_choice(seed: int, choice: int) -> int:
    """The first choice is what the request would get with n = 1."""
    return mix(seed ^ mix(choice)) if choice else seed


def _speculation(body: ChatRequest, vocabulary: Vocabulary) -> Speculation:
    asked = body.speculative
    prediction: tuple[int, ...] = ()
    if body.prediction is not None:
        prediction = tuple(vocabulary.tokenize(joined(body.prediction.content), special=False))
    if not isinstance(asked, Speculative):
        return Speculation(n_max=0 if asked is False else None, prediction=prediction)
    return Speculation(
        n_max=asked.n_max,
        n_min=asked.n_min,
        p_min=asked.p_min,
        exactness=asked.exactness,
        drafters=None if asked.drafters is None else frozenset(asked.drafters),
        prediction=prediction,
    )


def _n_keep(body: ChatRequest, n_prompt: int, vocabulary: Vocabulary) -> int:
    """As in llama-server: -1 is the whole prompt, and a BOS does not count."""
    return n_prompt if body.n_keep < 0 else body.n_keep + vocabulary.add_bos


def _constraint(served: Served, body: ChatRequest) -> Callable[[], Constraint] | None:
    if not body.grammar:
        return None
    if served.grammars is None:
        raise InvalidRequestError(
            "grammar: not supported by this server", param="grammar", code="unsupported_parameter"
        )
    return served.grammars(body.grammar)
