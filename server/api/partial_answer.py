"""Read from a stored log how far a reply has come, so that another process can continue the reply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from server.api.stages.prompted import Prompted
from server.engine.request import PictureSpan
from server.errors import InvalidRequestError
from server.llama.backend import PICTURE_IDS
from server.replies.store import Orphan
from server.sampling.logprobs import TokenLogprobs

Json: TypeAlias = dict[str, Any]
Note: TypeAlias = list[Any]
"""A choice's index, its new tokens, their logprobs, mirostat's state after them, and 1 if it has ended."""


Spans: TypeAlias = Callable[[Sequence[int]], Sequence[PictureSpan]]


@dataclass(slots=True)
class PartialChoice:
    """The part of a choice that clients may have seen: it is in the stored log."""

    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[TokenLogprobs] = field(default_factory=list[TokenLogprobs])
    mu: float | None = None  # mirostat's state
    ended: bool = False


@dataclass(frozen=True, slots=True)
class PartialAnswer:
    """The stored beginning of an answer that another process has begun."""

    id: str  # id of the answer
    created: int  # Unix seconds
    n_events: int
    choices: Sequence[PartialChoice]
    opened: bool  # its first events were sent
    closed: bool  # its last event was sent

    def asked(self, prompts: Sequence[Prompted], recipe: Json, spans: Spans) -> list[Prompted]:
        """Return the prompts, with requests that continue the replies after the tokens so far.

        Args:
            prompts: The prompts as this process makes them.
            recipe: What recipe_of() returned when the answer began.
            spans: Returns the spans of pictures in tokens.

        Raises:
            InvalidRequestError: The prompts have other pictures than before.
        """
        again, choices = list[Prompted](), iter(self.choices)
        for prompt, told in zip(prompts, recipe["prompts"], strict=True):
            tokens = _with_pictures(told["tokens"], prompt.tokens)
            requests = [
                replace(
                    request,
                    prompt=tokens,
                    pictures=spans(tokens),
                    sampling=request.sampling.reseeded(seed),
                    begun=tuple(choice.tokens),
                    mu=choice.mu,
                    progress=False,
                )
                for request, seed, choice in zip(prompt.requests, told["seeds"], choices, strict=False)
            ]
            # the words that stand for pictures differ between processes, so told["text"] cannot be used
            text, whole = (prompt.text, False) if prompt.pictures else (told["text"], prompt.whole)
            again.append(replace(prompt, text=text, tokens=tokens, requests=requests, whole=whole))
        return again


def _with_pictures(tokens: list[int], known: Sequence[int]) -> list[int]:
    """Return a prompt's tokens, with the ids of pictures replaced by those of this process.

    known: Tokens that this process makes of the same prompt. Their text may differ, for example in a date.
    """
    ids = [token for token in known if token >= PICTURE_IDS]
    if len(ids) != sum(token >= PICTURE_IDS for token in tokens):
        raise InvalidRequestError("the reply cannot go on: its pictures are other ones now")
    here = iter(ids)
    return [next(here) if token >= PICTURE_IDS else token for token in tokens]


def recipe_of(id: str, created: int, prompts: Sequence[Prompted]) -> Json | None:
    """Return the data to submit equal requests again; None for a beam search, which cannot be continued.

    id, created: The answer's id, and its time in Unix seconds.
    """
    requests = [request for prompt in prompts for request in prompt.requests]
    if any(request.n_beams > 1 for request in requests):
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
    """Return the beginning of an answer whose process is gone, from the states stored with its log."""
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
