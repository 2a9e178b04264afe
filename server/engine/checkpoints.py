"""Going back where sequences cannot be trimmed: spare sequences that keep the state a conversation had.

A recurrent or hybrid model has a state beside its cells, or instead of them, which is as long as the sequence
and cannot be made shorter. To keep one costs nothing until the sequence goes on: llama.cpp shares it until
then, and then copies it (docs/adr/0011). Two are kept of a conversation: from before a step with guesses, and
from near the end of a prompt, where the next turn, or another reply to the same prompt, may have to begin.
"""

from __future__ import annotations

from server.llama.backend import Backend

STEP, TURN = 0, 1  # what a conversation's spare sequences are for
MARGIN = 16  # tokens at the end of a prompt that a template may write differently in the next turn
WORTH = 64  # tokens that a mark has to be beyond the last one: it takes a step of its own


class Checkpoints:
    """Of the first n_main sequences, with n_each spare ones for each: 0 for none of all this, 1 for steps
    only, 2. The spare ones are those from n_main on."""

    def __init__(self, backend: Backend, n_main: int, n_each: int) -> None:
        self._backend = backend
        self._n_main = n_main
        self._n_each = n_each
        self._marks = [0] * n_main

    @property
    def can_guess(self) -> bool:
        return self._n_each > STEP

    def before_guesses(self, seq: int) -> None:
        """Remember the state that the sequence has now, to go back to."""
        self._backend.copy(seq, self._spare(seq, STEP), 0, 0)

    def back(self, seq: int, length: int) -> None:
        """As before the guesses, when it had that length."""
        self._become(seq, self._spare(seq, STEP), length)

    def mark_at(self, seq: int, n_held: int, n_prompt: int) -> int:
        """After which token of a prompt a mark is worth it, 0 if nowhere; the first n_held are there."""
        at = n_prompt - MARGIN
        return at if self._n_each > TURN and at > n_held and at - self._marks[seq] >= WORTH else 0

    def mark(self, seq: int, length: int) -> None:
        """Later sessions may go on from here, whatever comes behind it; until the next mark."""
        self._backend.copy(seq, self._spare(seq, TURN), 0, 0)
        self._marks[seq] = length

    def marked(self, seq: int) -> int:
        """The length of the sequence at its mark, 0 if it has none."""
        return self._marks[seq]

    def copy(self, source: int, target: int, length: int) -> None:
        """Give an empty sequence all of another one, or what that had at its mark."""
        self._backend.copy(source, target, 0, length)
        if length == self._marks[source]:
            self._become(target, self._spare(source, TURN), length)

    def trim(self, seq: int, length: int) -> None:
        """To nothing, to the mark, or to all that it holds. Raises BackendError for any other length."""
        if length and length == self._marks[seq]:
            self._become(seq, self._spare(seq, TURN), length)
        else:
            self._backend.trim(seq, length)
        if self.can_guess:
            self._backend.trim(self._spare(seq, STEP), 0)
        if not length and self._marks[seq]:
            self._backend.trim(self._spare(seq, TURN), 0)
            self._marks[seq] = 0

    def _become(self, seq: int, spare: int, length: int) -> None:
        """Take the state over first: then the cells behind it can go, too."""
        self._backend.copy(spare, seq, length, length)
        self._backend.trim(seq, length)

    def _spare(self, seq: int, which: int) -> int:
        return self._n_main + seq * self._n_each + which
