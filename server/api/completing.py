"""Base class of answers in the format of chat completions or legacy completions: a list of choices."""

from __future__ import annotations

import secrets
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import orjson

from server.api.answer import Answer, json_line, sse
from server.api.choices import Portion, ReplyChoice, likeliest
from server.api.generation_fields import GenerationFields
from server.api.partial_answer import PartialAnswer
from server.api.services import Services
from server.api.stages.prompted import Prompted
from server.api.statistics import combined, measured, summed, timings, usage
from server.engine.events import Stats
from server.text.message import Content, Piece

DONE = b"data: [DONE]\n\n"
"""Last event of OpenAI's streams of completions."""
PLACEHOLDER = "\0"
"""Placeholder for the text in a chunk that is serialised only once."""
PLACEHOLDER_JSON = b'"\\u0000"'  # the placeholder as JSON
NO_LOGPROBS = b'"logprobs":null'


class CompletionAnswer(Answer):
    """An answer made of choices. The constant parts of its chunks are serialised once."""

    _prefix: str
    """Prefix of the answer's id."""
    _objects: tuple[str, str]
    """Values of `object` in a whole answer and in a chunk."""

    def __init__(
        self,
        services: Services,
        body: GenerationFields,
        prompts: Sequence[Prompted],
        begun: PartialAnswer | None = None,
    ) -> None:
        """Submit the prompts; `begun`: the start of this answer, which another process has sent."""
        id = begun.id if begun else f"{self._prefix}-{secrets.token_hex(12)}"
        super().__init__(id, services, body, prompts)
        self._begun = begun
        self._body = body
        self._about = {
            "id": self._id,
            "created": begun.created if begun else int(time.time()),
            "model": services.model.id,
            "system_fingerprint": services.fingerprint,
        }
        # with include_usage, every chunk except the last has "usage": null, as OpenAI's chunks have
        self._no_usage: dict[str, Any] = {"usage": None} if body.with_usage else {}

    @abstractmethod
    def _whole_reply(self, choice: ReplyChoice, pieces: Sequence[Piece]) -> dict[str, Any]:
        """Return the fields of a choice in an answer that is not streamed."""

    @abstractmethod
    def _delta(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """Return the fields of a streamed choice that hold `pieces` (at most one)."""

    def _next_portion(self, choice: ReplyChoice) -> Portion:
        """Take the part of a choice to be sent now, in this answer's format."""
        return choice.portion()

    def _logprobs_json(self, index: int, logprobs: dict[str, Any]) -> dict[str, Any]:
        """Return the logprobs of a choice's next tokens in this answer's format."""
        return logprobs

    def _whole_json(self) -> bytes:
        """Return the whole answer with the best n choices of each prompt, numbered from 0."""
        portions = [self._next_portion(choice) for choice in self._choices]
        best = [choice for choices in self._by_prompt for choice in likeliest(choices, self._body.n)]
        told: list[dict[str, Any]] = []
        for i, choice in enumerate(best):
            portion = portions[choice.index]
            said = self._whole_reply(choice, portion.pieces)
            told.append({**self._choice_json(choice.index, said, portion, choice.reason), "index": i})
        whole = {"object": self._objects[0], **self._about, "choices": told}
        return orjson.dumps(
            {**whole, "usage": self._usage_json(), **self._usage_and_timings(), **self._extra_fields(best[0])}
        )

    def _extra_fields(self, choice: ReplyChoice) -> dict[str, Any]:
        """Return further fields of the whole answer, whose first choice is `choice`."""
        return {}

    def _new_events(self, choice: ReplyChoice) -> Iterator[bytes]:
        """Yield the new chunks of a choice; the last choice to end also sends usage and timings."""
        portion = self._next_portion(choice)
        for told in choice.take_progress():
            nothing = self._choice_json(choice.index, self._delta(()), Portion())
            yield self._chunk_event([nothing], **self._no_usage, **told)
        if portion.pieces:
            running = {"timings": timings(choice.stats())} if self._body.timings_per_token else {}
            yield from self._portion_chunks(choice.index, portion, running)
        if choice.reason is not None:
            last = all(one.reason is not None for one in self._choices)
            rest = Portion() if portion.pieces else portion  # tokens without text
            end = self._choice_json(choice.index, self._delta(()), rest, choice.reason)
            tells = last and not self._body.with_usage
            yield self._chunk_event([end], **self._no_usage, **(self._usage_and_timings() if tells else {}))

    def _closing_events(self) -> Iterator[bytes]:
        """Yield the chunk with usage, if requested, and the last event."""
        if self._body.with_usage:
            yield self._chunk_event([], usage=self._usage_json(), **self._usage_and_timings())
        yield DONE

    def _portion_chunks(self, index: int, portion: Portion, extra: dict[str, Any]) -> Iterator[bytes]:
        """Yield one chunk per piece.

        The last chunk has tokens, sources and the extra fields. The last chunk with content has the logprobs.
        """
        *before, last = portion.pieces
        bearer = next((piece for piece in reversed(portion.pieces) if isinstance(piece, Content)), last)
        for piece in before:
            logprobs = portion.logprobs if piece is bearer else None
            yield self._piece_chunk(index, piece, Portion(logprobs=logprobs), {})
        beside = portion if bearer is last else replace(portion, logprobs=None)
        yield self._piece_chunk(index, last, beside, extra)

    def _piece_chunk(self, index: int, piece: Piece, beside: Portion, extra: dict[str, Any]) -> bytes:
        if extra or not beside.plain or not isinstance(piece, Content):
            return self._chunk_event(
                [self._choice_json(index, self._delta([piece]), beside)], **self._no_usage, **extra
            )
        head, tail = self._chunk_frames[index]
        if beside.logprobs is not None:
            logprobs = json_line(self._logprobs_json(index, beside.logprobs))
            tail = tail.replace(NO_LOGPROBS, NO_LOGPROBS[:-4] + logprobs, 1)
        return head + json_line(piece.text) + tail

    @cached_property
    def _chunk_frames(self) -> list[list[bytes]]:
        """Return, for each choice, the bytes of a chunk before and after its text."""
        marked = self._delta([Content(PLACEHOLDER)])
        frames = [self._choice_json(choice.index, marked, Portion()) for choice in self._choices]
        return [self._chunk_event([frame], **self._no_usage).split(PLACEHOLDER_JSON) for frame in frames]

    def _chunk_event(self, choices: Sequence[Any], **extra: Any) -> bytes:
        return sse({"object": self._objects[1], **self._about, "choices": choices, **extra})

    def _choice_json(
        self, index: int, said: dict[str, Any], portion: Portion, reason: str | None = None
    ) -> dict[str, Any]:
        logprobs = None if portion.logprobs is None else self._logprobs_json(index, portion.logprobs)
        told = {"index": index, **said, "logprobs": logprobs, **beside(portion)}
        return {**told, "finish_reason": reason}

    def _summed_stats(self) -> Stats:
        return summed([combined([one.stats() for one in choices]) for choices in self._by_prompt])

    def _usage_json(self) -> dict[str, Any]:
        """Return the usage, once everything has been sent."""
        return usage(self._summed_stats(), sum(choice.n_reasoning for choice in self._choices))

    def _usage_and_timings(self) -> dict[str, Any]:
        return measured(self._summed_stats(), len(self._choices))


def beside(portion: Portion) -> dict[str, Any]:
    """Return the fields `tokens` and `sources` of a portion, each only if the request asked for it."""
    both = {"tokens": portion.tokens, "sources": portion.sources}
    return {name: value for name, value in both.items() if value is not None}
