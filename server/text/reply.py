"""Turn the engine's events of one reply into pieces of its message, and count its tokens up to its end."""

from __future__ import annotations

import codecs
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from server.engine.events import Committed, DrafterCount, FinishReason, Stats, Tally
from server.formats.reading import MessageReader
from server.llama.backend import Vocabulary
from server.text.detokenize import Alignment, Detokenizer, Span, marker_tokens
from server.text.guard import OrdinaryText
from server.text.message import Piece
from server.text.reply_format import ReplyFormat


class ReplyText(Tally):
    """Text and counts of one generation.

    A stop string may end the reply in the middle of a step. The step's tokens after it are not counted, but
    all tokens drafted for the step are.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        reader: MessageReader,
        *,
        aligned: bool = False,
        begins: bool = False,
        hear: Callable[[str], None] | None = None,
    ) -> None:
        """Begin a reply.

        Args:
            vocabulary: Vocabulary of the tokens.
            reader: Reads the text as a message, and finds where it ends.
            aligned: True if completed() will be called.
            begins: True if a message begins here: a space that the tokenizer adds before texts is dropped.
            hear: Called with each text that the reader gets.
        """
        super().__init__()
        self.reader = reader
        self._silent = vocabulary.eog  # tokens that are not text, even if printable
        markers = marker_tokens(vocabulary, reader.form.markers)
        self._detokenizer = Detokenizer(vocabulary, frozenset(markers.values()), begins=begins)
        self._ordinary = OrdinaryText(markers) if markers else None
        self._accepted: Counter[str | None] = Counter()
        self._per_step: Counter[int] = Counter()
        self._alignment = Alignment() if aligned else None
        self._hear = hear

    @property
    def stopped(self) -> bool:
        """True once the text has ended, even if the engine still generates."""
        return self.reader.stopped

    def silence(self, stop_tokens: Iterable[int]) -> None:
        """Leave these tokens, which end the generation, out of the text."""
        self._silent = self._silent.union(stop_tokens)

    def feed(self, step: Committed) -> list[Piece]:
        """Return the pieces that this step adds to the message."""
        if self.reader.may_stop:
            return [piece for pieces, _ in self.feed_each(step) for piece in pieces]
        text = "".join(self._token_texts(step.tokens))
        self._count_step(step)
        return self._read_text(text)

    def feed_each(self, step: Committed) -> list[tuple[list[Piece], int]]:
        """Return, for each token of the step, its pieces and the number of characters parsed up to it.

        A character is parsed once it is certain what it is: content, thoughts, a call, or a marker. Tokens
        after a stop string are omitted.
        """
        read = list[tuple[list[Piece], int]]()
        for text in self._token_texts(step.tokens):
            read.append((self._read_text(text), self.reader.n_parsed))
            if self.stopped:
                break
        if (n := len(read)) < len(step.tokens):
            step = replace(step, tokens=step.tokens[:n], sources=step.sources[:n])
        self._count_step(step)
        return read

    def _count_step(self, step: Committed) -> None:
        self.count(step)
        if step.n_drafted:
            self._accepted.update(step.sources)
            self._per_step[step.n_accepted] += 1

    def _token_texts(self, tokens: Sequence[int]) -> Iterator[str]:
        """Yield the guarded text of each token."""
        for position, token in enumerate(tokens, self.n_predicted):
            yield "" if token in self._silent else self._token_text(token, position)

    def _token_text(self, token: int, position: int) -> str:
        text = self._detokenizer.feed(token)
        if self._ordinary:
            text = self._ordinary.guarded(token, text)
        if self._alignment:
            self._alignment.add(position, text, unfinished=self._detokenizer.unfinished)
        return text

    def _read_text(self, text: str) -> list[Piece]:
        if self._hear:
            self._hear(text)
        return self.reader.feed(text)

    def end(self, reason: FinishReason) -> list[Piece]:
        """Return the last pieces, once the generation has ended. reason: why the engine ended it."""
        pieces = [] if self.stopped else self._read_text(self._detokenizer.flush())
        cut = self.stopped or self.finish_reason(reason) == "length"
        return pieces + self.reader.end(cut=cut)

    def completed(self, n_characters: int) -> list[Span]:
        """Return the tokens that have become complete in the first n_characters since the last call.

        Stop tokens are left out, and so are tokens that lie wholly within a stop string.
        """
        cut = self.stopped and n_characters == self.reader.n_parsed
        return self._alignment.released(n_characters, cut=cut) if self._alignment else []

    def finish_reason(self, reason: FinishReason) -> str:
        """Return OpenAI's name for the end: "stop" or "length". reason: why the engine ended generating."""
        cut = self.reader.outdented or (reason == "length" and not self.stopped)
        return "length" if cut else "stop"

    def stats(self, stats: Stats) -> Stats:
        """Return the engine's stats without what was generated past a stop string.

        Events do not say which drafter made a rejected token. If a stop string ended the reply and there were
        several drafters, each drafter's number of drafted tokens is therefore an upper bound.
        """
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


def as_read(vocabulary: Vocabulary, form: ReplyFormat, tokens: Sequence[int]) -> str:
    """Return a reply's guarded text as a reader of this format receives it, control tokens included."""
    ordinary = OrdinaryText(marker_tokens(vocabulary, form.markers))
    decoder = codecs.getincrementaldecoder("utf-8")("ignore")
    pieces = ((token, vocabulary.piece(token, special=True)) for token in tokens)
    return "".join(ordinary.guarded(token, decoder.decode(piece)) for token, piece in pieces)
