"""One reply as text: engine events in, pieces of text out, counted exactly up to where the reply ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import replace

from server.engine.events import Committed, DrafterCount, FinishReason, Stats, Tally
from server.llama.backend import Vocabulary
from server.text.detokenize import Alignment, Detokenizer, Span
from server.text.indentation import Indentation
from server.text.stops import StopStrings


class ReplyText(Tally):
    """Follows one generation. Counts what belongs to the text returned, which a stop string may end in the
    middle of a step; the tokens drafted for that step count all."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        stops: Sequence[str],
        *,
        aligned: bool = False,
        shown: Set[int] = frozenset(),
        begins: bool = False,
        n_indent: int = 0,
    ) -> None:
        """aligned: completed() will be asked for. shown: control tokens that are part of the text. begins: a
        message begins here (Detokenizer). n_indent: spaces that each line but the first begins with."""
        super().__init__()
        self.stopped = False
        self._silent = vocabulary.eog  # not text, even if their pieces are printable
        self._detokenizer = Detokenizer(vocabulary, shown, begins=begins)
        self._stops = StopStrings(stops)
        self._indentation = Indentation(n_indent)
        self._outdented = False  # a line has too little of it: the text is cut there
        self._accepted: Counter[str | None] = Counter()
        self._per_step: Counter[int] = Counter()
        self._alignment = Alignment() if aligned else None
        self._n_sent = 0

    def feed(self, step: Committed) -> str:
        """The text this step adds. After it `stopped` says whether a stop string was completed, or a line
        begun too far left: what follows is not part of the reply."""
        return "".join(self.feed_each(step))

    def feed_each(self, step: Committed) -> list[str]:
        """The text that each token of this step adds, those after a stop string left out. `stopped`: as for
        feed()."""
        texts = self._up_to_stop(step.tokens)
        if (n := len(texts)) < len(step.tokens):
            step = replace(step, tokens=step.tokens[:n], sources=step.sources[:n])
        self.count(step)
        if step.n_drafted:
            self._accepted.update(step.sources)
            self._per_step[step.n_accepted] += 1
        return texts

    def _up_to_stop(self, tokens: Sequence[int]) -> list[str]:
        """The text of each of these tokens, until a stop string is complete."""
        texts: list[str] = []
        for position, token in enumerate(tokens, self.n_predicted):
            if self.stopped:
                break
            texts.append("" if token in self._silent else self._feed(token, position))
        return texts

    def _feed(self, token: int, position: int) -> str:
        text = self._detokenizer.feed(token)
        if self._alignment:
            self._alignment.add(position, text, unfinished=self._detokenizer.unfinished)
        return self._send(text)

    def _send(self, text: str) -> str:
        sent, self.stopped = self._stops.feed(text)
        return self._indented(sent)

    def _indented(self, text: str) -> str:
        sent, self._outdented = self._indentation.feed(text)
        self.stopped = self.stopped or self._outdented
        self._n_sent += len(sent)
        return sent

    def end(self) -> str:
        """The rest of the text, once the generation has ended by itself."""
        if self.stopped:
            return ""
        text = self._send(self._detokenizer.flush())
        return text if self.stopped else text + self._indented(self._stops.flush())

    def completed(self, n_characters: int) -> list[Span]:
        """The tokens that so much of the text returned is made of, each once. Tokens that a stop string is
        wholly made of are none of them, nor is a stop token."""
        cut = self.stopped and n_characters == self._n_sent
        return self._alignment.released(n_characters, cut=cut) if self._alignment else []

    @property
    def stop_string(self) -> str | None:
        """The one that has ended the reply."""
        return self._stops.found

    def finish_reason(self, reason: FinishReason) -> str:
        """OpenAI's word for the end: stop or length."""
        cut = self._outdented or (reason == "length" and not self.stopped)
        return "length" if cut else "stop"

    def stats(self, stats: Stats) -> Stats:
        """The engine's stats, cut down to this text: what was generated past a stop string is not counted.
        Events do not tell who drafted what was rejected: after a stop string, the numbers that each of
        several drafters drafted are upper bounds."""
        drafters = {
            name: DrafterCount(min(count.drafted, self.n_drafted), self._accepted[name])
            for name, count in stats.drafters.items()
        }
        return replace(
            stats,
            n_predicted=self.n_predicted,
            n_steps=self.n_steps,
            n_drafted=self.n_drafted,
            n_accepted=self.n_accepted,
            drafters=drafters,
            accepted_per_step=tuple(self._per_step[n] for n in range(max(self._per_step, default=-1) + 1)),
        )
