"""One reply as text: engine events in, pieces of text out, counted exactly up to where the reply ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from server.engine.events import Committed, DrafterCount, FinishReason, Stats
from server.llama.backend import Vocabulary
from server.text.detokenize import Detokenizer
from server.text.stops import StopStrings


class ReplyText:
    """Follows one generation. Counts what belongs to the text returned, which a stop string may end in the
    middle of a step: n_tokens committed tokens, how many of them were guessed by whom, and the tokens
    drafted for the n_steps steps up to there."""

    def __init__(self, vocabulary: Vocabulary, stops: Sequence[str]) -> None:
        self.n_tokens = 0
        self.n_steps = 0
        self.n_drafted = 0
        self.stopped = False
        self._silent = vocabulary.eog  # not text, even if their pieces are printable
        self._detokenizer = Detokenizer(vocabulary)
        self._stops = StopStrings(stops)
        self._accepted: dict[str, int] = {}

    def feed(self, event: Committed) -> str:
        """The text this step adds. After it `stopped` says whether a stop string was completed: what
        follows is not part of the reply."""
        pieces: list[str] = []
        self.n_steps += 1
        self.n_drafted += event.n_drafted
        for token, source in zip(event.tokens, event.sources, strict=True):
            if self.stopped:
                break
            self.n_tokens += 1
            if source:
                self._accepted[source] = self._accepted.get(source, 0) + 1
            if token in self._silent:
                continue
            text, self.stopped = self._stops.feed(self._detokenizer.feed(token))
            pieces.append(text)
        return "".join(pieces)

    def end(self) -> str:
        """The rest of the text, once the generation has ended by itself."""
        if self.stopped:
            return ""
        text, self.stopped = self._stops.feed(self._detokenizer.flush())
        return text + self._stops.flush()

    def finish_reason(self, reason: FinishReason) -> str:
        """OpenAI's word for the end: stop or length."""
        return "stop" if self.stopped or reason != "length" else "length"

    def stats(self, stats: Stats) -> Stats:
        """The engine's stats, cut down to this text: what was generated past a stop string is not counted.
        Events do not tell who drafted what was rejected: after a stop string, the numbers that each of
        several drafters drafted are upper bounds."""
        drafters = {
            name: DrafterCount(min(count.drafted, self.n_drafted), self._accepted.get(name, 0))
            for name, count in stats.drafters.items()
        }
        return replace(
            stats,
            n_predicted=self.n_tokens,
            n_steps=self.n_steps,
            n_drafted=self.n_drafted,
            n_accepted=sum(self._accepted.values()),
            drafters=drafters,
        )
