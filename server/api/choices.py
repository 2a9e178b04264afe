"""Replies to one request, each with its generation, its text, and its unsent part."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from server.api.generation_fields import GenerationFields
from server.api.logprobs_json import logprobs_json
from server.api.pacing import Pace, UnsentPieces
from server.api.partial_answer import Note, PartialChoice
from server.api.sourced_text import SourcedText
from server.api.statistics import evaluating, timings
from server.engine.events import Committed, Event, Failed, Finished, Progress, Started, Stats
from server.engine.generate import Generation
from server.errors import BusyError, DuoError
from server.formats.reading import MessageReader
from server.llama.backend import Vocabulary
from server.sampling.logprobs import TokenLogprobs
from server.text.call_ids import derived
from server.text.message import Content, Message, Piece, coalesced, folded
from server.text.reply import ReplyText
from server.text.reply_format import ReplyFormat


@dataclass(frozen=True, slots=True)
class Portion:
    """The next part of a reply: text, and the logprobs, ids and sources that the request asked for."""

    pieces: Sequence[Piece] = ()  # adjacent pieces are of different kinds
    logprobs: dict[str, Any] | None = None  # logprobs of the content's tokens, in OpenAI's shape
    tokens: list[int] | None = None  # all token ids
    sources: list[dict[str, str | None]] | None = None  # text and drafter of each token of the content

    @property
    def plain(self) -> bool:
        """True if the portion has neither tokens nor sources."""
        return self.tokens is None and self.sources is None

    @property
    def text(self) -> str:
        """Return the content among the pieces."""
        return "".join(piece.text for piece in self.pieces if isinstance(piece, Content))


class ReplyChoice:
    """One reply, made from the events of its generation.

    Pass all these events to see(), in order. Call portion() at any time to take the part to be sent.
    """

    def __init__(
        self,
        index: int,
        generation: Generation,
        vocabulary: Vocabulary,
        body: GenerationFields,
        form: ReplyFormat,
        *,
        begins: bool,
    ) -> None:
        """Begin a reply in the format `form`. `begins` is False if it continues an earlier message."""
        self.index = index
        self.generation = generation
        self.events = aiter(generation)
        self.reason: str | None = None  # OpenAI's finish_reason, once the reply has ended without an error
        self._error: DuoError | None = None
        self._vocabulary = vocabulary
        self._with_logprobs = body.n_logprobs is not None
        self._with_tokens = body.with_tokens
        self._drawn_from = body.post_sampling_probs
        self._sourced = SourcedText() if body.return_sources else None
        beside = self._with_logprobs or self._with_tokens or body.return_sources
        self._aligned = beside or form.thoughts is not None
        self._reader = MessageReader(form, stops=body.stops, n_indent=body.n_indent)
        hear = self._sourced.feed if self._sourced else None
        self._text = ReplyText(vocabulary, self._reader, aligned=self._aligned, begins=begins, hear=hear)
        self._text.silence(body.stop_token_ids or ())
        self._unsent = UnsentPieces()
        self._sent: list[Piece] = []
        self.n_reasoning = 0  # tokens of thoughts and their markers that were sent
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._started = Started(0, 0)
        self._stats: Stats | None = None
        self._first_at = self._last_at = 0.0  # seconds of the engine's clock
        self._with_progress = body.stream and body.return_progress
        self._with_timings = body.timings_per_token
        self._progress: list[dict[str, Any]] = []  # reports of the prompt's evaluation that are not sent yet
        self._of_prompt: list[TokenLogprobs] = []  # logprobs of the prompt's tokens except the first
        self._most_ms = body.t_max_predict_ms
        self._out_of_time = False
        self._silent = not body.reports_reply

    @property
    def ended(self) -> bool:
        return self.reason is not None or self._error is not None

    def check(self) -> None:
        """Raise the error if the reply failed.

        A cancellation that was not requested is a failure: the server is shutting down.
        """
        if self._error is not None:
            raise self._error

    def spread(self, frame_s: float) -> None:
        """Send the tokens of each later step one by one, at the times that Pace chooses.

        The caller must call wake() after each portion that it takes. frame_s: Seconds of a frame (pacing.py).
        """
        self._unsent.pace = Pace(frame_s)

    def wake(self) -> None:
        """Make the iteration over `events` resume when more tokens are due to be sent."""
        if not self.ended and (at := self._unsent.next_at) is not None:
            self.generation.wake_in(max(0.0, at - monotonic()))

    def see(self, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case Started():
                    self._started = event
                    self._note_progress(event.n_cached, event.at)
                case Progress():
                    self._note_progress(event.n_evaluated, event.at)
                    # may overwrite: after a preemption, tokens are evaluated again
                    begin = event.n_evaluated - len(event.logprobs)
                    self._of_prompt[begin:] = event.logprobs
                case Committed():
                    self._read_commit(event)
                case Failed():
                    self._error = event.error
                case Finished("cancelled") if not (self._text.stopped or self._out_of_time):
                    self._error = BusyError("the server is shutting down", draining=True)
                case Finished():
                    self._end_reply(event)

    def _end_reply(self, event: Finished) -> None:
        # OpenAI's finish_reason, once the reply has ended without an error
        reason = "length" if self._silent or self._out_of_time else event.reason
        self._unsent.add(self._text.end(reason))
        self.reason = self._text.finish_reason(reason)
        if self.reason == "stop" and self.message.calls and not self._reader.broken_off:
            self.reason = "tool_calls"
        self._stats = self._text.stats(event.stats)

    def _read_commit(self, event: Committed) -> None:
        """Read a step; cancel the generation at a stop string, or after t_max_predict_ms."""
        self._last_at = event.at
        if not self._first_at:
            self._first_at = self._last_at
            self._note_progress(self._started.n_prompt, event.at)
        if self._silent or self._text.stopped or self._out_of_time:
            return
        self._tokens += event.tokens
        self._logprobs += event.logprobs
        if self._sourced is not None:
            self._sourced.commit(event.sources)
        self._read_step(event)
        self._out_of_time = not self._text.stopped and self._is_late()
        if self._text.stopped or self._out_of_time:
            self.generation.cancel(keep=self._text.n_predicted)

    def name_calls(self, id: str) -> None:
        """Derive call ids from the answer's id, so that another lead that continues it makes equal ids."""

        def call_id(n: int) -> str:
            return f"call_{derived(id, f'{self.index} {n}')[:24]}"

        self._reader.call_id = call_id

    def replay(self, begun: PartialChoice) -> None:
        """Read the tokens that another lead has generated for this reply.

        Call this before passing events to see().
        """
        tokens = tuple(begun.tokens)
        if not tokens:
            return
        self._tokens += tokens
        self._logprobs += begun.logprobs
        if self._sourced is not None:
            self._sourced.commit((None,) * len(tokens))
        self._read_step(Committed(tokens, (None,) * len(tokens), logprobs=tuple(begun.logprobs)))
        if self._text.stopped:
            self.generation.cancel(keep=self._text.n_predicted)

    def note_after(self, n: int, mu: float | None) -> Note:
        """Return a Note of the tokens after the first n.

        mu: State of mirostat after these tokens, None without mirostat.
        """
        logprobs = [[one.token, one.logprob, one.top] for one in self._logprobs[n:]]
        return [self.index, self._tokens[n:], logprobs, mu, int(self.ended)]

    @property
    def n_tokens(self) -> int:
        return len(self._tokens)

    def _read_step(self, step: Committed) -> None:
        """Read a step's tokens; hold some of them back if that makes the stream more even."""
        if self._unsent.spreads(len(step.tokens), step.at):
            n_parsed = self._reader.n_parsed
            self._unsent.spread(n_parsed, self._text.feed_each(step), step.undrafted_s, monotonic())
        else:
            self._unsent.add(self._text.feed(step))

    def _is_late(self) -> bool:
        late = 0 < self._most_ms < (self._last_at - self._first_at) * 1e3
        return late and "\n" in self.message.content

    def _note_progress(self, n_processed: int, at: float) -> None:
        if self._with_progress:
            self._progress.append(
                {
                    "total": self._started.n_prompt,
                    "cache": self._started.n_cached,
                    "processed": n_processed,
                    "time_ms": round((at - self._started.at) * 1e3, 3),
                }
            )

    def take_progress(self) -> Iterator[dict[str, Any]]:
        """Take the new reports of the prompt's evaluation, and yield each as the fields of a chunk."""
        told, self._progress = self._progress, []
        for one in told:
            so_far = {"timings": timings(evaluating(one))} if self._with_timings else {}
            yield {"prompt_progress": one, **so_far}

    def portion(self) -> Portion:
        """Take the part of the reply to be sent now. Tokens wait until their characters are complete."""
        due, n_parsed = self._unsent.take(self._reader.n_parsed, monotonic(), ends=self.ended)
        pieces = coalesced(due)
        self._sent += pieces
        if not self._aligned or not (pieces or self.reason):
            return Portion(pieces)
        told = self._text.completed(n_parsed)
        self.n_reasoning += sum(one.start < self._reader.n_thought for one in told)
        logprobs = tokens = sources = None
        if self._with_logprobs:
            content = [self._logprobs[o.position] for o in told if self._reader.content.has(o.start, o.end)]
            logprobs = logprobs_json(self._vocabulary, content, shares=self._drawn_from)
        if self._with_tokens:
            tokens = [self._tokens[one.position] for one in told]
        if self._sourced is not None:
            sources = self._sourced.take_sources(told, self._reader)
        return Portion(pieces, logprobs, tokens, sources)

    def stats(self) -> Stats:
        """Return the statistics of the reply so far, without tokens that wait to be sent."""
        if self._stats is not None:
            return self._stats
        text, told = self._text, bool(self._text.n_steps)
        return Stats(
            n_prompt=self._started.n_prompt,
            n_cached=self._started.n_cached,
            n_predicted=text.n_predicted - self._unsent.n_waiting,
            n_steps=text.n_steps,
            prompt_ms=(self._first_at - self._started.at) * 1e3 if told else 0.0,
            predicted_ms=(self._last_at - self._first_at) * 1e3 if told else 0.0,
            n_drafted=text.n_drafted,
            n_accepted=text.n_accepted,
        )

    @property
    def message(self) -> Message:
        """Return the reply so far, including pieces that are not sent yet."""
        return folded([*self._sent, *self._unsent.pieces])

    @property
    def said(self) -> tuple[Message, list[int]]:
        """Return the reply so far as a message, and its tokens including a stop token."""
        return self.message, self._tokens[: self._text.n_predicted]

    def prompt_logprobs(self, first: int) -> list[dict[str, Any]]:
        """Return logprob entries for the prompt's tokens in OpenAI's shape, control tokens written out.

        Args:
            first: The first token of the prompt, which has no logprob.
        """
        known = [TokenLogprobs(first, 0.0), *self._of_prompt]
        entry, *more = logprobs_json(self._vocabulary, known, special=True)["content"]
        return [{**entry, "logprob": None, "top_logprobs": None}, *more]

    @property
    def slot(self) -> int:
        """Return the number of the slot that generates the reply."""
        return self._started.slot

    @property
    def stop_string(self) -> str | None:
        """Return the stop string that ended the reply, None if none did."""
        return self._reader.stop_string

    @property
    def mean_logprob(self) -> float:
        """Return the mean logprob of the reply's tokens, including those of a stop token or string."""
        counted = self._logprobs[: self._text.n_predicted]
        return sum(one.logprob for one in counted) / max(1, len(counted))


async def growing(choices: Sequence[ReplyChoice]) -> AsyncIterator[ReplyChoice]:
    """Yield each choice once, then again whenever it has grown, until all choices have ended."""
    for choice in choices:
        yield choice
    if len(choices) == 1:
        while not choices[0].ended:
            choices[0].see(await anext(choices[0].events))
            yield choices[0]
        return
    waiting = {asyncio.ensure_future(anext(choice.events)): choice for choice in choices if not choice.ended}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=lambda one: waiting[one].index):
                choice = waiting.pop(task)
                choice.see(task.result())
                if not choice.ended:
                    waiting[asyncio.ensure_future(anext(choice.events))] = choice
                yield choice
    finally:
        for task in waiting:
            task.cancel()


async def grown(choices: Sequence[ReplyChoice]) -> None:
    """Wait until all choices have ended; raise the error of the first that fails."""
    async for choice in growing(choices):
        choice.check()


def likeliest(choices: Sequence[ReplyChoice], n: int) -> Sequence[ReplyChoice]:
    """Return the n choices with the largest mean logprob, best first.

    If there are at most n choices, return all of them in their present order.
    """
    if len(choices) <= n:
        return choices
    return sorted(choices, key=lambda choice: -choice.mean_logprob)[:n]
