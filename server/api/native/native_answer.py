"""Answer a completion in llama-server's own format. One object per reply ends the reply's stream."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import orjson

from server.api.answer import Answer, sse
from server.api.choices import Portion, ReplyChoice, likeliest
from server.api.native.native_request import NativeRequest
from server.api.native_form import native_result, picked, said
from server.api.services import Services
from server.api.stages.prompted import Prompted
from server.api.statistics import timings
from server.text.message import Content


class NativeAnswer(Answer):
    """An answer in llama-server's own format."""

    def __init__(self, services: Services, body: NativeRequest, prompts: Sequence[Prompted]) -> None:
        super().__init__("", services, body, prompts)
        self._body = body
        self._requests = [request for prompt in prompts for request in prompt.requests]

    def _whole_json(self) -> bytes:
        """Return the object of the only reply, or a list of several replies' objects, ordered by prompt."""
        portions = [choice.portion() for choice in self._choices]
        best = [choice for choices in self._by_prompt for choice in likeliest(choices, self._body.n)]
        results = [
            self._wanted_fields({**said(portions[choice.index]), **self._result_json(choice), "index": i})
            for i, choice in enumerate(best)
        ]
        return orjson.dumps(results[0] if len(results) == 1 else results)

    def _opening_events(self) -> Iterator[bytes]:
        return iter(())

    def _new_events(self, choice: ReplyChoice) -> Iterator[bytes]:
        for told in choice.take_progress():
            yield sse({**self._chunk_head(choice), **said(Portion()), **told})
        for portion in _by_token(choice.portion()):
            if portion.tokens:
                running = {"timings": timings(choice.stats())} if self._body.timings_per_token else {}
                yield sse({**self._chunk_head(choice), **said(portion), **running})
        if choice.reason is not None:
            yield sse(self._wanted_fields({**said(Portion()), **self._result_json(choice)}))

    def _closing_events(self) -> Iterator[bytes]:
        return iter(())

    def _chunk_head(self, choice: ReplyChoice) -> dict[str, Any]:
        stats = choice.stats()
        counts = {"tokens_predicted": stats.n_predicted, "tokens_evaluated": stats.n_prompt}
        return {"index": choice.index, "id_slot": choice.slot, "stop": False, **counts}

    def _result_json(self, choice: ReplyChoice) -> dict[str, Any]:
        return native_result(self._services, self._body, self._requests[choice.index], choice)

    def _wanted_fields(self, result: dict[str, Any]) -> dict[str, Any]:
        return picked(result, self._body.response_fields) if self._body.response_fields else result


def _by_token(portion: Portion) -> Iterator[Portion]:
    """Split a portion with logprobs into one per token, as llama-server does. Yield any other one whole."""
    entries: list[Any] = portion.logprobs["content"] if portion.logprobs else []
    rest, decoder = portion.text, codecs.getincrementaldecoder("utf-8")("replace")
    for entry in entries[:-1]:
        text = decoder.decode(bytes(entry["bytes"] or ()))
        text = text if rest.startswith(text) else ""
        rest = rest[len(text) :]
        pieces = [Content(text)] if text else []
        yield Portion(pieces, {"content": [entry]}, [entry["id"]])
    last = replace(portion, pieces=[Content(rest)] if rest else [])
    if len(entries) > 1:
        last = replace(last, logprobs={"content": entries[-1:]}, tokens=[entries[-1]["id"]])
    yield last
