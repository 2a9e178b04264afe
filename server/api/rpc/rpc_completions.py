"""Run a completion for the JSON-RPC facade, in one call or with polling."""

from __future__ import annotations

import asyncio
from typing import Any

from server.api.choices import grown
from server.api.completing import beside
from server.api.problem import defect
from server.api.rpc.rpc_params import CompletionParams
from server.api.services import Services
from server.api.stages.prompted import Prompted
from server.api.stages.submit import submit
from server.api.statistics import timings
from server.api.stopped import why_stopped
from server.errors import DuoError


class RpcCompletion:
    """A completion that runs in the background; implements Held.

    updates() returns the text generated since the last call; whole() waits for the end.
    """

    def __init__(self, services: Services, body: CompletionParams, prompt: Prompted) -> None:
        """Submit the prompt. Raises the generator's errors."""
        self._services = services
        self._prompt = prompt
        [self._choice] = submit(services, body, [prompt])
        self._error: DuoError | None = None
        self._task = asyncio.create_task(self._follow_generation())

    def cancel(self) -> None:
        self._task.cancel()
        self._choice.generation.cancel()

    async def whole(self) -> dict[str, Any]:
        """Wait for the end, and return the whole completion. Raises DuoError if it fails."""
        await self._task
        [update], _ = self.updates()
        return {name: value for name, value in update.items() if name != "stop"}

    def updates(self) -> tuple[list[dict[str, Any]], bool]:
        """Return the updates since the last call, and True if the completion has ended.

        The last update has `stop` true, and final statistics. Raises the error of a failed generation.
        """
        if self._error is not None:
            raise self._error
        update = {**self._new_fields(), "stop": self._task.done()}
        if self._task.done():
            return [{**update, **self._final_figures()}], True
        return [update] if update["content"] else [], False

    async def _follow_generation(self) -> None:
        try:
            await grown([self._choice])
            self._prompt.remember(self._services.history, [self._choice])
        except DuoError as error:
            self._error = error
        except Exception as error:
            self._error = defect("a completion", error)

    def _new_fields(self) -> dict[str, Any]:
        """Return the fields that no poll has returned yet, always including `content`."""
        portion = self._choice.portion()
        told: dict[str, Any] = {"content": portion.text}
        if portion.logprobs is not None:
            told["completion_probabilities"] = portion.logprobs["content"]
        return {**told, **beside(portion)}

    def _final_figures(self) -> dict[str, Any]:
        """Return the statistics of the ended completion, and why it has ended."""
        stats = self._choice.stats()
        why, word = why_stopped(self._choice)
        return {
            "tokens_predicted": stats.n_predicted,
            "tokens_evaluated": stats.n_prompt,
            "truncated": stats.truncated,
            "stopped_eos": why == "eos",
            "stopped_word": why == "word",
            "stopped_limit": why == "limit",
            "stopping_word": word,
            "timings": timings(stats),
            "prompt_stats": {
                "length": stats.n_prompt,
                "cached": stats.n_cached,
                "evaluated": stats.n_prompt - stats.n_cached,
            },
        }
