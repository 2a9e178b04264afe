"""Keep earlier states of sequences that cannot be trimmed, and go back to them.

A recurrent or hybrid model has a state, beside its cells or instead of them, that covers the whole sequence
and cannot be shortened. So spare sequences keep earlier states (docs/adr/0011). Keeping a state is cheap,
because llama.cpp copies it only when the sequence continues. A conversation has two checkpoints: the step
checkpoint, from before a step with guesses; and the turn checkpoint near the prompt's end, from which the
next turn, or another reply to the prompt, can continue.
"""

from __future__ import annotations

from server.llama.backend import Backend

STEP, TURN = 0, 1  # a conversation's spare sequences: for its step checkpoint and its turn checkpoint
TURN_MARGIN = 16  # tokens at the end of a prompt that a template may write differently in the next turn
MIN_CHECKPOINT_TOKENS = 64  # minimum tokens between turn checkpoints: each splits a prompt's step in two


class Checkpoints:
    """Earlier states of the conversations' sequences, which are the first n_main sequences.

    After these come n_each spare sequences per conversation: 0 for no checkpoints, 1 for step checkpoints, 2
    for turn checkpoints as well.
    """

    def __init__(self, backend: Backend, n_main: int, n_each: int) -> None:
        self._backend = backend
        self._n_main = n_main
        self._n_each = n_each
        self.turn_lengths = [
            0
        ] * n_main  # tokens that each sequence's turn checkpoint covers, 0 if it has none

    @property
    def can_guess(self) -> bool:
        return self._n_each > STEP

    def save_step(self, seq: int) -> None:
        """Save the current state as the sequence's step checkpoint."""
        self._backend.copy(seq, self._spare_sequence(seq, STEP), 0, 0)

    def restore_step(self, seq: int, length: int) -> None:
        """Restore the step checkpoint, which covers `length` tokens."""
        self._take_state_of(seq, self._spare_sequence(seq, STEP), length)

    def turn_checkpoint_at(self, seq: int, n_cached: int, n_prompt: int) -> int:
        """Return the number of prompt tokens after which to save the turn checkpoint; 0: save none.

        Args:
            seq: The sequence.
            n_cached: Number of the prompt's tokens that are cached.
            n_prompt: Number of the prompt's tokens.
        """
        at = n_prompt - TURN_MARGIN
        return (
            at
            if self._n_each > TURN and at > n_cached and at - self.turn_lengths[seq] >= MIN_CHECKPOINT_TOKENS
            else 0
        )

    def save_turn(self, seq: int, length: int) -> None:
        """Save the current state, which covers `length` tokens, as the sequence's turn checkpoint.

        Later sessions can continue from it.
        """
        self._backend.copy(seq, self._spare_sequence(seq, TURN), 0, 0)
        self.turn_lengths[seq] = length

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of `source` to the empty sequence `target`.

        `length` is the source's own length, or that of its turn checkpoint.
        """
        self._backend.copy(source, target, 0, length)
        if length == self.turn_lengths[source]:
            self._take_state_of(target, self._spare_sequence(source, TURN), length)

    def trim(self, seq: int, length: int) -> None:
        """Trim a sequence to 0, to its own length, or to that of its turn checkpoint.

        Raises BackendError for other lengths.
        """
        if length and length == self.turn_lengths[seq]:
            self._take_state_of(seq, self._spare_sequence(seq, TURN), length)
        else:
            self._backend.trim(seq, length)
        if self.can_guess:
            self._backend.trim(self._spare_sequence(seq, STEP), 0)
        if not length and self.turn_lengths[seq]:
            self._backend.trim(self._spare_sequence(seq, TURN), 0)
            self.turn_lengths[seq] = 0

    def _take_state_of(self, seq: int, spare: int, length: int) -> None:
        """Copy the state in the sequence `spare` to `seq`, and remove the cells of `seq` from `length` on."""
        self._backend.copy(spare, seq, length, length)
        self._backend.trim(seq, length)

    def _spare_sequence(self, seq: int, which: int) -> int:
        return self._n_main + seq * self._n_each + which
