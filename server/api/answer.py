"""One answer on its way to one client, whatever its form: whole, or chunk by chunk as its replies grow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Sequence

from server.api import problem
from server.api.choices import ReplyChoice, interleaved
from server.api.sse import event
from server.engine.events import Committed
from server.errors import DuoError


class Answer(ABC):
    """Begin it, then take it whole or in chunks. Cancel it when nobody will read the rest."""

    def __init__(self, id: str, choices: Sequence[ReplyChoice]) -> None:
        self._id = id
        self._choices = choices

    def cancel(self) -> None:
        for choice in self._choices:
            choice.generation.cancel()

    async def begin(self) -> None:
        """Wait until the engine takes the request up. Raises the error if it fails before that."""
        first = self._choices[0]
        first.see(await anext(first.events))

    async def whole(self) -> bytes:
        """The JSON of all of it."""
        await self.begin()
        async for choice, one in interleaved(self._choices):
            choice.see(one)
        self._remember()
        return self._all()

    async def chunks(self) -> AsyncIterator[bytes]:
        """The stream, as many events at a time as there are. A failure in its middle is its last event."""
        try:
            if opening := b"".join(self._opening()):
                yield opening
            async for choice, one in interleaved(self._choices):
                try:
                    choice.see(one)
                except DuoError:  # it comes after what has been generated
                    if news := b"".join(self._news(choice)):
                        yield news
                    raise
                if isinstance(one, Committed) and choice.generation.more:
                    continue  # to be told together with what is here already
                if news := b"".join(self._news(choice)):
                    yield news
            self._remember()
            yield b"".join(self._closing())
        except DuoError as error:
            yield self._failure(error)
        except Exception as error:
            yield self._failure(problem.defect(f"the stream {self._id}", error))

    @abstractmethod
    def _remember(self) -> None:
        """All replies have ended: the next prompt may continue one of them."""

    @abstractmethod
    def _all(self) -> bytes:
        """The JSON of all of it, once all replies have ended."""

    @abstractmethod
    def _opening(self) -> Iterator[bytes]:
        """What a stream begins with."""

    @abstractmethod
    def _news(self, choice: ReplyChoice) -> Iterator[bytes]:
        """What a choice has to tell now; at its end, why it ended."""

    @abstractmethod
    def _closing(self) -> Iterator[bytes]:
        """What a stream ends with once all replies have."""

    def _failure(self, error: DuoError) -> bytes:
        """The last event of a stream that fails."""
        return event(problem.body(error))
