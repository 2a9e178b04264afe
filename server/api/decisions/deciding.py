"""Find the probabilities of a question's answers: score each option's label after one prompt.

The prompt gives each option a label. A label's probability is that of its first token after the prompt, so
one row of logits contains the probabilities of all labels. If labels share a first token, their next tokens
are scored after a second prompt, which ends with the shared token. Such prompts share cached tokens.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from starlette.requests import Request

from server.api.decisions.questions import BEGUN, Question, shares
from server.api.delivery import unless_gone
from server.api.renaming import Names, renamed
from server.api.services import Services
from server.api.stages.submit import prepared_chat
from server.api.stages.validate import checked, on_prompt_thread
from server.engine.events import Committed, Failed, Started
from server.engine.request import GenerationRequest

Json: TypeAlias = dict[str, Any]


@dataclass(slots=True)
class Cost:
    """Numbers of tokens in the prompts of a request, for its usage."""

    n_prompt: int = 0
    n_cached: int = 0

    @property
    def as_json(self) -> Json:
        """Return the usage in OpenAI's form."""
        return {
            "input_tokens": self.n_prompt,
            "input_tokens_details": {
                "cached_tokens": self.n_cached,
                "cache_write_tokens": self.n_prompt - self.n_cached,
            },
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.n_prompt,
        }


@dataclass(frozen=True, slots=True)
class LabelledPrompt:
    """A request with a question's prompt, and the tokens that each label adds after the prompt."""

    request: GenerationRequest
    labels: Sequence[Sequence[int]]


class Decider:
    """Asks the model the questions of one request, as many at a time as the engine has slots."""

    def __init__(self, request: Request, services: Services, names: Names) -> None:
        """Begin a request. `names`: patterns that rename fields of chat completions in errors."""
        self._request = request
        self._services = services
        self._names = names
        self._running = asyncio.Semaphore(max(1, services.health().slots_total))
        self.cost = Cost()

    async def answers(
        self, body: Json, said: Sequence[Json], questions: Sequence[Question]
    ) -> list[list[float]]:
        """Return, for each question, the probabilities of its options, or of yes and no.

        Args:
            body: Fields of the questions' chat completions, besides the messages.
            said: Chat messages that the questions are about.
            questions: The questions, each asked separately.

        Raises:
            DuoError: For example, a prompt is too long, or the server is busy.
        """
        with renamed(self._names):
            asked = [
                await on_prompt_thread(self._request, self._question_prompt, body, said, question)
                for question in questions
            ]
        tasks = [
            asyncio.ensure_future(self._label_shares(one.request, one.labels, first=True)) for one in asked
        ]
        try:
            return await unless_gone(self._request, _gather_all(tasks))
        finally:
            for task in tasks:
                task.cancel()

    def _question_prompt(self, body: Json, said: Sequence[Json], question: Question) -> LabelledPrompt:
        """Return the prompt of one question about the messages `said`. Slow: not for the event loop."""
        messages = [*said]
        if messages and messages[-1]["role"] == "user":
            before = messages.pop()["content"]
            messages.append({"role": "user", "content": f"{before}\n\n{question.text}"})
        else:
            messages.append({"role": "user", "content": question.text})
        messages.append({"role": "assistant", "content": BEGUN})
        chat = checked(self._services, {**body, "messages": messages, "max_tokens": 1, "temperature": 0})
        request = prepared_chat(self._services, chat).requests[0]
        tokenize = self._services.vocabulary.tokenize
        begun = tokenize(BEGUN, special=False)
        labels = [tokenize(f"{BEGUN} {label}", special=False) for label in question.labels]
        if any(label[: len(begun)] != begun for label in labels):  # the colon and the label share a token
            labels = [[*begun, *tokenize(f" {label}", special=False)] for label in question.labels]
        return LabelledPrompt(replace(request, constraint=None), [label[len(begun) :] for label in labels])

    async def _label_shares(
        self, request: GenerationRequest, labels: Sequence[Sequence[int]], *, first: bool
    ) -> list[float]:
        """Return the probabilities of labels after a prompt. They sum to 1.

        Tokens that all labels begin with count as certain.

        Args:
            request: A request with the prompt.
            labels: The tokens of each label. No label may begin with another one.
            first: True: add the prompt's tokens to the cost.
        """
        begun: list[int] = []
        while all(label[: len(begun) + 1] == labels[0][: len(begun) + 1] for label in labels):
            if len(begun) == len(labels[0]):
                return [1.0] * len(labels)
            begun.append(labels[0][len(begun)])
        request = replace(request, prompt=[*request.prompt, *begun])
        by_token: defaultdict[int, list[int]] = defaultdict(list)
        for i, label in enumerate(labels):
            by_token[label[len(begun)]].append(i)
        told = await self._logprobs_of(request, list(by_token), first=first)
        found = [0.0] * len(labels)
        for share, (token, places) in zip(
            shares([told[one] for one in by_token]), by_token.items(), strict=True
        ):
            further = replace(request, prompt=[*request.prompt, token])
            rest = [labels[i][len(begun) + 1 :] for i in places]
            within = await self._label_shares(further, rest, first=False) if len(places) > 1 else [1.0]
            for i, part in zip(places, within, strict=True):
                found[i] = share * part
        return found

    async def _logprobs_of(
        self, request: GenerationRequest, tokens: Sequence[int], *, first: bool
    ) -> dict[int, float]:
        """Return the logprob of each token after a prompt. `first`: add the prompt's tokens to the cost."""
        request = replace(request, logprobs_of=tuple(sorted(tokens)), n_logprobs=0, stop_tokens=frozenset())
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._running)
            generation = self._services.generator.submit(request)
            stack.callback(generation.cancel)
            async for events in generation:
                for event in events:
                    if isinstance(event, Started) and first:
                        self.cost.n_prompt += event.n_prompt
                        self.cost.n_cached += event.n_cached
                    elif isinstance(event, Failed):
                        raise event.error
                    elif isinstance(event, Committed):
                        return dict(event.logprobs[0].top)
        raise AssertionError("a generation ends with an event that says so")


async def _gather_all(tasks: Sequence[asyncio.Future[list[float]]]) -> list[list[float]]:
    return list(await asyncio.gather(*tasks))
