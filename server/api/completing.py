"""The base of answers to chat completions and legacy completions: choices in an envelope."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import orjson

from server.api.answer import Answer
from server.api.choices import Portion, ReplyChoice, likeliest
from server.api.generation_fields import GenerationFields
from server.api.served import Served
from server.api.sse import DONE, event
from server.api.statistics import combined, measured, summed, timings, usage
from server.engine.events import Stats

MARK = "\0"
MARKED = b'"\\u0000"'  # the mark as JSON


class Envelope:
    """The fields that each chunk and the whole answer have."""

    def __init__(self, id: str, served: Served) -> None:
        self._about = {
            "id": id,
            "created": int(time.time()),
            "model": served.model.id,
            "system_fingerprint": served.fingerprint,
        }

    def __call__(self, object: str, choices: Sequence[Any], **extra: Any) -> dict[str, Any]:
        return {"object": object, **self._about, "choices": choices, **extra}


class ChunkWriter(ABC):
    """Writes the chunks of one streamed answer. Constant parts are serialised once."""

    def __init__(self, object: str, envelope: Envelope, *, usage: bool) -> None:
        """usage: every chunk but the last carries "usage": null, as OpenAI does when it is asked for."""
        self._object = object
        self._envelope = envelope
        self._extra: dict[str, Any] = {"usage": None} if usage else {}

    @abstractmethod
    def portion(self, index: int, portion: Portion, timings: dict[str, Any] | None = None) -> Iterator[bytes]:
        """Chunks for a portion with pieces."""

    @abstractmethod
    def finish(self, choice: ReplyChoice, rest: Portion, extra: dict[str, Any]) -> bytes:
        """rest: tokens that are part of no text."""

    def usage(self, usage: dict[str, Any]) -> bytes:
        return event(self._envelope(self._object, [], usage=usage))

    def _chunk(self, choice: dict[str, Any], **extra: Any) -> bytes:
        return event(self._envelope(self._object, [choice], **self._extra, **extra))

    def _frame(self, marked: dict[str, Any]) -> tuple[bytes, bytes]:
        """The bytes before and after the text in a chunk whose text is MARK."""
        head, tail = self._chunk(marked).split(MARKED)
        return head, tail


class CompletionAnswer(Answer):
    """The first n_generated choices are for the first prompt, and so on."""

    def __init__(
        self, prefix: str, served: Served, body: GenerationFields, choices: Sequence[ReplyChoice]
    ) -> None:
        """prefix: of the answer's id."""
        super().__init__(f"{prefix}-{secrets.token_hex(12)}", choices)
        self._body = body
        self._history = served.history
        self._envelope = Envelope(self._id, served)

    @property
    def _by_prompt(self) -> list[Sequence[ReplyChoice]]:
        n = self._body.n_generated
        return [self._choices[i : i + n] for i in range(0, len(self._choices), n)]

    def _stats(self) -> Stats:
        return summed([combined([one.stats() for one in choices]) for choices in self._by_prompt])

    def _usage(self) -> dict[str, Any]:
        """To be called once everything is told."""
        return usage(self._stats(), sum(choice.n_reasoning for choice in self._choices))

    def _figures(self) -> dict[str, Any]:
        return measured(self._stats(), len(self._choices))

    def _all(self) -> bytes:
        """The best choices of each prompt, renumbered."""
        portions = [choice.portion() for choice in self._choices]
        best = [choice for choices in self._by_prompt for choice in likeliest(choices, self._body.n)]
        told = [
            {"index": i, **self._whole_choice(choice, portions[choice.index]), "finish_reason": choice.reason}
            for i, choice in enumerate(best)
        ]
        return orjson.dumps(self._envelope(self._object, told, usage=self._usage(), **self._figures()))

    def _news(self, choice: ReplyChoice) -> Iterator[bytes]:
        """The last choice that ends brings the figures."""
        portion = choice.portion()
        if portion.pieces:
            running = timings(choice.stats()) if self._body.timings_per_token else None
            yield from self._writer.portion(choice.index, portion, running)
            portion = Portion()
        if choice.reason is not None:
            last = all(one.reason is not None for one in self._choices)
            yield self._writer.finish(choice, portion, self._figures() if last else {})

    def _closing(self) -> Iterator[bytes]:
        if self._body.with_usage:
            yield self._writer.usage(self._usage())
        yield DONE

    _object: str
    """What the whole answer is called."""

    @cached_property
    @abstractmethod
    def _writer(self) -> ChunkWriter: ...

    @abstractmethod
    def _whole_choice(self, choice: ReplyChoice, portion: Portion) -> dict[str, Any]:
        """The fields of a choice between index and finish_reason. portion: the whole reply."""


def beside(portion: Portion) -> dict[str, Any]:
    """Tokens and sources of a portion, if the request asked for them."""
    both = {"tokens": portion.tokens, "sources": portion.sources}
    return {name: value for name, value in both.items() if value is not None}
