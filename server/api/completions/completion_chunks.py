"""The JSON of legacy completions, whole and in chunks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from server.api.choices import Portion, ReplyChoice
from server.api.completing import MARK, ChunkWriter, Envelope, beside
from server.api.logprobs_json import LegacyLogprobs

OBJECT = "text_completion"


class TextChunks(ChunkWriter):
    def __init__(self, envelope: Envelope, n_choices: int, *, usage: bool) -> None:
        super().__init__(OBJECT, envelope, usage=usage)
        self._logprobs = [LegacyLogprobs() for _ in range(n_choices)]
        self._frames = [
            self._frame({"index": i, "text": MARK, "logprobs": None, "finish_reason": None})
            for i in range(n_choices)
        ]

    def portion(self, index: int, portion: Portion, timings: dict[str, Any] | None = None) -> Iterator[bytes]:
        if portion.logprobs is None and portion.plain and timings is None:
            head, tail = self._frames[index]
            yield head + orjson.dumps(portion.text) + tail
        else:
            yield self._part(index, portion, None, {} if timings is None else {"timings": timings})

    def finish(self, choice: ReplyChoice, rest: Portion, extra: dict[str, Any]) -> bytes:
        return self._part(choice.index, rest, choice.reason, extra)

    def _part(self, index: int, portion: Portion, reason: str | None, extra: dict[str, Any]) -> bytes:
        text = text_json(portion, self._logprobs[index])
        return self._chunk({"index": index, **text, "finish_reason": reason}, **extra)


def text_json(portion: Portion, logprobs: LegacyLogprobs, before: str = "") -> dict[str, Any]:
    """before: text in front, for echo."""
    told = None if portion.logprobs is None else logprobs.told(portion.logprobs)
    return {"text": before + portion.text, "logprobs": told, **beside(portion)}
