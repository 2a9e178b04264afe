"""Read from a stored log how far a reply has come, so that another process can continue the reply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from server.api.stages.prompted import Prompted
from server.replies.store import Orphan
from server.sampling.logprobs import TokenLogprobs

Json: TypeAlias = dict[str, Any]
Note: TypeAlias = list[Any]
"""Of a choice: its index, new tokens, their logprobs, mirostat's state after them, and 1 if it has ended."""


@dataclass(slots=True)
class PartialChoice:
    """The part of a choice that clients may have seen: it is in the stored log."""

    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[TokenLogprobs] = field(default_factory=list[TokenLogprobs])
    mu: float | None = None  # mirostat's state
    ended: bool = False


@dataclass(frozen=True, slots=True)
class PartialAnswer:
    """A reply that another process has begun."""

    id: str  # of its answer
    created: int  # Unix seconds
    n_events: int
    choices: Sequence[PartialChoice]
    opened: bool  # its first events were told
    closed: bool  # its last event was told

    def asked(self, prompts: Sequence[Prompted], recipe: Json) -> list[Prompted]:
        """Return prompts with the tokens, seeds and beginnings that their replies have."""
        again, choices = list[Prompted](), iter(self.choices)
        for prompt, told in zip(prompts, recipe["prompts"], strict=True):
            requests = [
                replace(
                    request,
                    prompt=told["tokens"],
                    sampling=request.sampling.reseeded(seed),
                    begun=tuple(choice.tokens),
                    mu=choice.mu,
                    progress=False,
                )
                for request, seed, choice in zip(prompt.requests, told["seeds"], choices, strict=False)
            ]
            again.append(replace(prompt, text=told["text"], tokens=told["tokens"], requests=requests))
        return again


def recipe_of(id: str, created: int, prompts: Sequence[Prompted]) -> Json | None:
    """Return what submits the same requests again; None if they cannot be begun in the middle."""
    requests = [request for prompt in prompts for request in prompt.requests]
    if any(request.n_beams > 1 or request.pictures for request in requests):
        return None
    told = [
        {
            "text": prompt.text,
            "tokens": list(prompt.tokens),
            "seeds": [request.sampling.seed for request in prompt.requests],
        }
        for prompt in prompts
    ]
    return {"id": id, "created": created, "prompts": told}


def partial_answer_of(orphan: Orphan) -> PartialAnswer:
    """Return the answer so far of a reply whose process has died, from its log."""
    recipe, states = orphan.recipe, orphan.states
    choices = [PartialChoice() for _ in range(sum(len(told["seeds"]) for told in recipe["prompts"]))]
    for state in states:
        for index, tokens, logprobs, mu, ended in state.get("choices", ()):
            choice = choices[int(index)]
            choice.tokens += tokens
            choice.logprobs += [TokenLogprobs(token, p, _pairs(top)) for token, p, top in logprobs]
            choice.mu, choice.ended = mu, bool(ended)
    closed = any(state.get("closed") for state in states)
    return PartialAnswer(recipe["id"], recipe["created"], orphan.log.n_events, choices, bool(states), closed)


def _pairs(top: Sequence[Sequence[Any]]) -> tuple[tuple[int, float], ...]:
    return tuple((token, logprob) for token, logprob in top)
