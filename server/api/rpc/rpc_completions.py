"""Completions of the JSON-RPC facade: at once, or polled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from server.api.choices import Portion, ReplyChoice, submit
from server.api.completing import beside
from server.api.engine_requests import Prompted
from server.api.problem import defect
from server.api.rpc.rpc_params import CompletionParams
from server.api.served import Served
from server.api.statistics import timings
from server.errors import DuoError
from server.llama.backend import Vocabulary


class RpcCompletion:
    """One completion, submitted."""

    def __init__(self, served: Served, body: CompletionParams, prompt: Prompted) -> None:
        """Raises what the generator raises."""
        self._served = served
        self._prompt = prompt
        self._stops = body.stops
        [self._choice] = submit(served, body, prompt.requests)

    def cancel(self) -> None:
        self._choice.generation.cancel()

    @property
    def finished(self) -> bool:
        return self._choice.reason is not None

    async def follow(self) -> None:
        """Wait for the end. Raises DuoError if the generation fails."""
        async for event in self._choice.events:
            self._choice.see(event)
        self._prompt.remember(self._served.history, [self._choice])

    def told(self) -> dict[str, Any]:
        """What is not told yet; `content` is always there."""
        return _told(self._choice.portion())

    def figures(self) -> dict[str, Any]:
        """To be called at the end."""
        stats = self._choice.stats()
        return {
            "tokens_predicted": stats.n_predicted,
            "tokens_evaluated": stats.n_prompt,
            "truncated": stats.truncated,
            **_ending(self._choice, self._served.vocabulary, self._stops),
            "timings": timings(stats),
            "prompt_stats": {
                "length": stats.n_prompt,
                "cached": stats.n_cached,
                "evaluated": stats.n_prompt - stats.n_cached,
            },
        }


class AsyncCompletion:
    """Implements Held: a completion that goes on between polls."""

    def __init__(self, completion: RpcCompletion) -> None:
        self._completion = completion
        self._error: DuoError | None = None
        self._task = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        try:
            await self._completion.follow()
        except DuoError as error:
            self._error = error
        except Exception as error:
            self._error = defect("an async completion", error)

    def news(self) -> tuple[list[dict[str, Any]], bool]:
        """Updates since the last call, and whether it has ended; the last update has `stop` true and the
        figures. Raises the error of a failed generation."""
        if self._error is not None:
            raise self._error
        completion = self._completion
        update = {**completion.told(), "stop": self._task.done()}
        if self._task.done():
            return [{**update, **completion.figures()}], True
        return [update] if update["content"] else [], False

    def cancel(self) -> None:
        self._task.cancel()
        self._completion.cancel()


def _told(portion: Portion) -> dict[str, Any]:
    told: dict[str, Any] = {"content": portion.text}
    if portion.logprobs is not None:
        told["completion_probabilities"] = portion.logprobs["content"]
    return {**told, **beside(portion)}


def _ending(choice: ReplyChoice, vocabulary: Vocabulary, stops: Sequence[str]) -> dict[str, Any]:
    """Exactly one of the three flags is true."""
    message, tokens = choice.said
    stopped = choice.reason == "stop"
    word = ""
    if stopped and not (tokens and tokens[-1] in vocabulary.eog):
        spelled = b"".join(vocabulary.piece(token) for token in tokens).decode(errors="replace")
        word = _stopping_word(spelled[len(message.content) :], stops)
    return {
        "stopped_eos": stopped and not word,
        "stopped_word": bool(word),
        "stopped_limit": not stopped,
        "stopping_word": word,
    }


def _stopping_word(rest: str, stops: Sequence[str]) -> str:
    """The stop string that ended the text. rest: what was generated after the text; the shortest stop string
    that it begins with was complete first."""
    return min((stop for stop in stops if stop and rest.startswith(stop)), key=len, default="")
