"""Keep earlier states of sequences that cannot be trimmed, and go back to them.

A recurrent or hybrid model has a state, beside its cells or instead of them, that covers the whole sequence
and cannot be shortened. So spare sequences keep earlier states (docs/adr/0011). llama.cpp copies a kept state
only when the sequence continues. Two states are kept per conversation: the one before a step with guesses,
and the one at a mark near the prompt's end, where the next turn, or another reply to the prompt, may begin.
"""

from __future__ import annotations

from server.llama.backend import Backend

STEP, TURN = 0, 1  # a conversation's spare sequences: for the state before a step, and for that at its mark
TURN_MARGIN = 16  # tokens at the end of a prompt that a template may write differently in the next turn
MIN_MARK_TOKENS = 64  # minimum tokens from one mark to the next: each mark splits a prompt's step in two


class Checkpoints:
    """Earlier states of the conversations' sequences, which are the first n_main sequences.

    After these come n_each spare sequences per conversation: 0 for no checkpoints, 1 for the state before a
    step, 2 for the state at the mark as well.
    """

    def __init__(self, backend: Backend, n_main: int, n_each: int) -> None:
        self._backend = backend
        self._n_main = n_main
        self._n_each = n_each
        self.marks = [0] * n_main  # length of each sequence at its mark, 0 if it has none

    @property
    def can_guess(self) -> bool:
        return self._n_each > STEP

    def before_guesses(self, seq: int) -> None:
        """Keep the current state, for back() to restore."""
        self._backend.copy(seq, self._spare_sequence(seq, STEP), 0, 0)

    def back(self, seq: int, length: int) -> None:
        """Restore the state from before the guesses, which covers `length` tokens."""
        self._take_state_of(seq, self._spare_sequence(seq, STEP), length)

    def mark_at(self, seq: int, n_held: int, n_prompt: int) -> int:
        """Return after how many prompt tokens mark() should keep the state for later sessions; 0: not at all.

        Args:
            seq: The sequence.
            n_held: Number of the prompt's tokens that are cached.
            n_prompt: Number of the prompt's tokens.
        """
        at = n_prompt - TURN_MARGIN
        return at if self._n_each > TURN and at > n_held and at - self.marks[seq] >= MIN_MARK_TOKENS else 0

    def mark(self, seq: int, length: int) -> None:
        """Keep the current state, from which later sessions can continue: set the sequence's mark.

        length: Number of tokens that the state covers.
        """
        self._backend.copy(seq, self._spare_sequence(seq, TURN), 0, 0)
        self.marks[seq] = length

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens to an empty sequence.

        `length` is all tokens of the source, or those up to its mark, where mark() kept the state.
        """
        self._backend.copy(source, target, 0, length)
        if length == self.marks[source]:
            self._take_state_of(target, self._spare_sequence(source, TURN), length)

    def trim(self, seq: int, length: int) -> None:
        """Trim a sequence to 0, to its own length, or to its mark, where mark() kept the state.

        Raises BackendError for other lengths.
        """
        if length and length == self.marks[seq]:
            self._take_state_of(seq, self._spare_sequence(seq, TURN), length)
        else:
            self._backend.trim(seq, length)
        if self.can_guess:
            self._backend.trim(self._spare_sequence(seq, STEP), 0)
        if not length and self.marks[seq]:
            self._backend.trim(self._spare_sequence(seq, TURN), 0)
            self.marks[seq] = 0

    def _take_state_of(self, seq: int, spare: int, length: int) -> None:
        """Give `seq` the state in the sequence `spare`, and remove the cells of `seq` from `length` on."""
        self._backend.copy(spare, seq, length, length)
        self._backend.trim(seq, length)

    def _spare_sequence(self, seq: int, which: int) -> int:
        return self._n_main + seq * self._n_each + which
