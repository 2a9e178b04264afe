"""Answer a request to the Responses API, whole or as events."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from server.api.answer import Answer, sse
from server.api.chat.chat_request import ChatRequest
from server.api.choices import ReplyChoice
from server.api.partial_answer import Json, PartialAnswer, recipe_of
from server.api.responses.request_as_chat import AsChat
from server.api.responses.response_events import Event, ItemOptions, Output, new_id
from server.api.responses.response_request import ResponseRequest
from server.api.responses.response_tools import AnyTool, OwnFunction, is_served
from server.api.services import Services
from server.api.stages.prompted import Prompted
from server.api.statistics import measured, timings
from server.errors import DuoError, StoreError
from server.replies.kept import StoredResponse, with_items
from server.replies.store import Kept
from server.text.call_ids import derived

logger = logging.getLogger("duo.api")

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
LOST = "this response can no longer be stored: it ends where it is read"
HERE_ONLY = "this response is too large to be shared: it ends with this server, which alone can return it"
TOO_LONG = "this response has become more than one API key may store: it cannot be read again"


@dataclass(frozen=True, slots=True)
class ResponseTurn:
    """A request together with the conversation that it continues."""

    chat: AsChat
    input_items: Sequence[dict[str, Any]]  # the conversation with the request's input, as OpenAI lists it
    new_items: Sequence[dict[str, Any]] = ()  # the part of input_items that is the request's input
    # the conversation before the request's input: chat messages, and items that follow them
    before: tuple[Sequence[dict[str, Any]], Sequence[dict[str, Any]]] = ((), ())
    compacted: dict[str, Any] | None = None  # the summary that replaces the conversation from now on


class ResponseAnswer(Answer):
    """An answer in the format of OpenAI's Responses API, made of one reply."""

    def __init__(
        self,
        services: Services,
        chat: ChatRequest,
        asked: Prompted,
        body: ResponseRequest,
        turn: ResponseTurn,
        begun: PartialAnswer | None = None,
    ) -> None:
        """Submit the prompt.

        Args:
            services: The server.
            chat: The chat completion that the request was converted to.
            asked: The prompt of `chat`.
            body: The request.
            turn: The request as a turn of its conversation.
            begun: The part of the response that another process has sent; this answer continues it.
        """
        super().__init__(begun.id if begun else new_id("resp"), services, chat, [asked])
        self._begun = begun
        self._sampling = asked.requests[0].sampling
        self._body = body
        self._turn = turn
        self._joins: dict[str, Any] | None = None  # response that is to be added to its conversation
        self._warnings = list(turn.chat.tools.left_out)
        self._choice = self._choices[0]
        self._created = begun.created if begun else int(time.time())
        asked_thoughts = body.reasoning and body.reasoning.summary_kind
        self._output = Output(
            ItemOptions(
                turn.chat.tools.by_name,
                as_summary=bool(asked_thoughts),
                sealed="reasoning.encrypted_content" in body.include,
            ),
            self._item_id,
        )
        self._numbers = itertools.count()
        if turn.compacted:
            self._output.items.append(turn.compacted)

    def _whole_json(self) -> bytes:
        list(self._remaining_events(self._choice))
        return orjson.dumps(self._store_response())

    def _item_id(self, kind: str) -> str:
        """Return the id of the next item, with the prefix `kind`. Every process derives the same id."""
        return f"{kind}_{derived(self._id, str(len(self._output.items)))[:48]}"

    def _number_from(self, n: int) -> None:
        self._numbers = itertools.count(n)

    def recipe(self, given: Json) -> Json | None:
        told, turn = recipe_of(self._id, self._created, self._prompts), self._turn
        earlier = turn.input_items[: len(turn.input_items) - len(turn.new_items)]
        about = {"before": turn.before, "earlier": earlier, "new": turn.new_items}
        body = {**given, "input": ""}  # new_items hold the input
        return told and {"kind": "response", "body": body, **told, **about, "compacted": turn.compacted}

    def go_on_alone(self, given: Json) -> dict[str, Any]:
        """Start to generate and store the response in the background; return it with the status queued.

        Args:
            given: The request's body, from which another process can continue the response.

        Raises:
            StoreError: The response is larger than what one API key may store.
        """
        queued = self._response_json("queued")
        # before the log begins: this process must not store once another one has taken up the log
        kept = self._keep(queued)
        if kept == "nowhere":
            self.cancel()
            raise StoreError.full()
        if kept == "here":
            self._warnings.append(HERE_ONLY)
            queued = self._response_json("queued")
        recipe = self.recipe(given) if kept == "everywhere" else None
        log = self._services.replies.begin_log(self.owner, self._id, recipe)
        for type in ("response.created", "response.queued"):
            log.append(self._numbered_event({"type": type, "response": queued}))
        self._services.background.start(self.owner, self._id, self, log)
        return queued

    def _opening_events(self) -> Iterator[bytes]:
        response = self._response_json("in_progress")
        if self._body.background:
            self._keep(response)
        else:
            yield self._numbered_event({"type": "response.created", "response": response})
        yield self._numbered_event({"type": "response.in_progress", "response": response})
        if compacted := self._turn.compacted:
            for type in ("response.output_item.added", "response.output_item.done"):
                yield self._numbered_event({"type": type, "output_index": 0, "item": compacted})

    def _new_events(self, choice: ReplyChoice) -> Iterator[bytes]:
        for told in choice.take_progress():
            progress = {
                "type": "response.in_progress",
                "response": self._response_json("in_progress"),
                **told,
            }
            yield self._numbered_event(progress)
        events = list(self._remaining_events(choice))
        if events and self._body.timings_per_token:
            events[-1] = {**events[-1], "timings": timings(choice.stats())}
        yield from map(self._numbered_event, events)

    def _closing_events(self) -> Iterator[bytes]:
        response = self._store_response()
        told = {"type": f"response.{response['status']}", "response": response}
        yield self._numbered_event({**told, "timings": response["timings"]})

    def _failure_event(self, error: DuoError) -> bytes:
        list(self._output.end("incomplete"))
        if self.stopped:
            status, response = "incomplete", self._response_json("cancelled")
        else:
            failed = {"code": "server_error", "message": error.message}
            status, response = "failed", self._response_json("failed", failed)
        if self._body.background:
            self._keep(response)
        return self._numbered_event({"type": f"response.{status}", "response": response})

    def _loss_event(self) -> bytes:
        if LOST in self._warnings:
            return b""
        self._warnings.append(LOST)
        return self._numbered_event(
            {"type": "response.in_progress", "response": self._response_json("in_progress")}
        )

    async def _flush_store(self) -> None:
        joins, self._joins = self._joins, None
        if joins is not None:
            await self._join_conversation(joins)
        if self._body.store:
            await self._services.replies.flush()

    async def _join_conversation(self, response: dict[str, Any]) -> None:
        """Add the input and the response to the request's conversation; only log errors of the store."""
        new = [*self._turn.new_items, *response["output"]]
        id = str(self._body.conversation_id)
        try:
            await self._services.replies.change(self.owner, id, lambda stored: with_items(stored, new))
        except StoreError as error:
            logger.warning("%s is not added to its conversation: %s", self._id, error.message)

    def _remaining_events(self, choice: ReplyChoice) -> Iterable[Event]:
        """Yield the events about what the choice has generated since the last call."""
        portion = choice.portion()
        logprobs = portion.logprobs["content"] if portion.logprobs else ()
        yield from self._output.feed(portion.pieces, logprobs)
        if choice.reason is not None and not self._body.prewarms:
            yield from self._output.end(self._final_status)

    @property
    def _final_status(self) -> Literal["completed", "incomplete"]:
        cut = self._choice.reason == "length" and not self._body.prewarms
        return "incomplete" if cut else "completed"

    def _numbered_event(self, event: Event) -> bytes:
        numbered = {**event, "sequence_number": next(self._numbers)}
        return b"event: " + event["type"].encode() + b"\n" + sse(numbered)

    def _store_response(self) -> dict[str, Any]:
        """Return the ended response, and store it if the request asks for it."""
        response = self._response_json(self._final_status)
        prompt = self._prompts[0].requests[0].prompt
        self._services.prompts.remember(self._body.salt, self._id, prompt, self._prompt_parts())
        if self._body.store and self._keep(response) == "nowhere" and self._body.background:
            self._warnings.append(TOO_LONG)
            response["warnings"] = [*self._warnings]
        if self._body.conversation_id is not None:
            self._joins = response
        return response

    def _keep(self, response: dict[str, Any]) -> Kept:
        """Store the response as it is now, for later requests; return where it is kept."""
        if self.forgotten:
            return "everywhere"
        messages = [*self._turn.chat.messages, self._choice.message.as_json]
        stored = StoredResponse(response, messages, self._turn.input_items)
        return self._services.replies.put(self.owner, stored)

    def _response_json(self, status: Status, error: dict[str, Any] | None = None) -> dict[str, Any]:
        ended = status in ("completed", "incomplete")
        incomplete = {"reason": "max_output_tokens"} if status == "incomplete" else None
        response = {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": self._body.background,
            "error": error,
            "incomplete_details": incomplete,
            **self._repeated(),
            "output": self._output.items if status not in ("queued", "in_progress") else [],
            **({"warnings": [*self._warnings]} if self._warnings else {}),
            "usage": self._usage_json() if ended else None,
        }
        if not ended:
            return response
        return response | measured(self._choice.stats()) | self._cache_diagnostics()

    def _prompt_parts(self) -> dict[str, str]:
        """Return parts of the prompt as texts, to find the parts that differ from another prompt's.

        The key of a part is OpenAI's name for a cache miss that this part causes.
        """
        chat = self._turn.chat.chat
        told = {"tools_changed": chat.get("tools"), "reasoning_effort_changed": chat.get("reasoning_effort")}
        return {name: repr(value) for name, value in told.items()}

    def _cache_diagnostics(self) -> dict[str, Any]:
        """Return where the prompt first differs from that of the response comparison_response_id.

        The result has the field prompt_cache_diagnostics. It is {} if the request gives no such id.
        """
        id = self._body.prompt_cache_options.comparison_response_id
        if id is None:
            return {}
        prompt = self._prompts[0].requests[0].prompt
        found = self._services.prompts.divergence(self._body.salt, id, prompt, self._prompt_parts())
        if found is None:
            return {"prompt_cache_diagnostics": {"type": "comparison_response_not_found"}}
        if not found.n_missed:
            return {"prompt_cache_diagnostics": {"type": "cache_hit"}}
        reason = "context_compacted" if self._turn.compacted else found.changed or "input_changed"
        about = {"cache_missed_tokens": found.n_missed, "comparison_reusable_tokens": found.n_common}
        return {"prompt_cache_diagnostics": {"type": "cache_miss", "reason": reason, **about}}

    def _usage_json(self) -> dict[str, Any]:
        stats = self._choice.stats()
        n_evaluated = stats.n_prompt - stats.n_cached
        return {
            "input_tokens": stats.n_prompt,
            "input_tokens_details": {"cached_tokens": stats.n_cached, "cache_write_tokens": n_evaluated},
            "output_tokens": stats.n_predicted,
            "output_tokens_details": {"reasoning_tokens": self._choice.n_reasoning},
            "total_tokens": stats.n_prompt + stats.n_predicted,
        }

    def _repeated(self) -> dict[str, Any]:
        """Return the fields of the request that the response repeats, with the values that apply."""
        body, sampling, turn = self._body, self._sampling, self._turn
        choice, reasoning = body.tool_choice, body.reasoning
        return {
            "model": self._services.model.id,
            "instructions": body.instructions,
            "previous_response_id": body.previous_response_id,
            **({"conversation": {"id": id}} if (id := body.conversation_id) else {}),
            "max_output_tokens": body.max_output_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_logprobs": body.top_logprobs or 0,
            "tools": [_repeated(tool) for tool in body.tools if is_served(tool)],
            "tool_choice": choice if isinstance(choice, str) else choice.model_dump(exclude_none=True),
            "parallel_tool_calls": body.parallel_tool_calls,
            "text": {"format": turn.chat.format.model_dump(by_alias=True, exclude_none=True)},
            "reasoning": {
                "effort": turn.chat.effort,
                "summary": reasoning.summary_kind if reasoning else None,
            },
            "service_tier": body.service_tier or "default",
            "truncation": body.truncation,
            "store": body.store,
            "metadata": body.metadata,
        }


def _repeated(tool: AnyTool) -> dict[str, Any]:
    if isinstance(tool, OwnFunction):
        told = tool.model_dump(exclude={"defer_loading", "allowed_callers"})
        given = {"defer_loading": tool.defer_loading, "allowed_callers": tool.allowed_callers}
        return told | {name: value for name, value in given.items() if value}
    return tool.model_dump(exclude_unset=True, exclude_none=True)
