"""Choose the sequence of the KV cache that a prompt continues, and the idle sequence to evict first.

Pure bookkeeping over token ids: it returns what to do (Reuse, Evicted), and the engine does it. Each sequence
holds one conversation. A prompt that continues an idle conversation takes its sequence. A prompt that only
shares its beginning with another conversation, idle or busy, gets a copy of the common prefix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import TypeAlias

from server.cache.radix import RadixIndex, common_prefix

# A conversation's worth halves after this number of uses of other conversations: two rounds of four slots. A
# conversation of 8k tokens is worth less than a fresh one of 1k after 24 uses. Twice: after 48; half: 12.
HALF_LIFE = 8
ONE_STEP = 64  # tokens of a conversation that count nothing: about one step evaluates them. Twice: two steps
# Assumed tokens at a prompt's end that a template may write differently in the next turn. Half: if a template
# changes more, the next turn takes another sequence; twice: prompts that differ only in their last 32 tokens
# share a sequence.
TEMPLATE = 16


BusyTokens: TypeAlias = tuple[list[int], int]
"""The tokens of a busy sequence's session, and how many leading tokens another sequence may copy."""


@dataclass(frozen=True, slots=True)
class Evicted:
    """The content of a KV sequence that is idle, or that the caller should empty.

    To keep the conversation, save it before emptying the sequence.
    """

    seq: int
    tokens: list[int]
    salt: str


@dataclass(frozen=True, slots=True)
class Reuse:
    """Reuse the first `length` tokens in sequence `seq` for a prompt, and evaluate its other tokens.

    If `source` is another sequence, first empty `seq`, and copy the tokens from `source`. To keep `evicted`
    or `lost`, save them before that.
    """

    seq: int
    length: int
    source: int
    evicted: Evicted | None = None  # the conversation that had `seq`, unless the prompt continues it
    lost: Evicted | None = None  # the conversation in `seq`, if the prompt continues less than half of it


@dataclass(slots=True)
class _Resident:
    """The state of one KV sequence."""

    tokens: list[int] = field(default_factory=list[int])  # what it holds while idle, none while busy
    salt: str = ""
    busy: bool = False
    n_prompt: int = 0  # tokens of the last session's prompt; 0 if not known
    last_used: int = 0  # value of PrefixCache._uses at the last use


class PrefixCache:
    """Index of the idle and busy sequences of one KV cache."""

    def __init__(self, n_seqs: int, *, partial: bool = True) -> None:
        """Begin with n_seqs free sequences.

        partial: True if sequences can be trimmed to any length, False if only to their checkpoint's length.
        """
        self._residents = [_Resident() for _ in range(n_seqs)]
        self._partial = partial
        self._idle: RadixIndex[int] = RadixIndex()
        self._checkpoints: RadixIndex[int] = (
            RadixIndex()
        )  # tokens that the checkpoints of idle sequences cover
        # tokens of idle sequences, and prompts of busy sequences (evaluated or not yet)
        self._held: RadixIndex[int] = RadixIndex()
        self._n_cells = 0
        self._uses = 0
        self._last: int | None = None  # the sequence with the conversation used last

    def take(
        self,
        tokens: list[int],
        busy: Mapping[int, BusyTokens] | None = None,
        *,
        salt: str = "",
        only: int | None = None,
    ) -> Reuse | None:
        """Claim the best sequence for a prompt, or the idle sequence `only`.

        The prompt reuses the longest prefix that it shares with a sequence. That sequence itself is claimed
        if the prompt continues its idle conversation. Otherwise the idle sequence whose loss costs least is
        claimed, and the prefix is copied to it. The prompt's last token is always evaluated, for its logits.

        Args:
            tokens: The prompt.
            busy: Tokens of busy sequences; those of another salt are ignored.
            salt: Salt of the prompt.
            only: The idle sequence to claim; None for any.

        Returns:
            What to reuse, None if all sequences are busy.
        """
        if self.n_busy == len(self._residents):
            return None
        source, length = self.longest(tokens[:-1], busy or {}, salt)
        if only is not None:
            reuse = self._in_place(only, source, length)
        elif source is not None and self._goes_on(source, length):
            reuse = Reuse(source, length, source)
        else:
            reuse = self._claim_least_loss(source, length)
            self._last = None if reuse.seq == self._last else self._last
        self._forget_sequence(reuse.seq)
        last_used = self._residents[reuse.seq].last_used
        self._put_resident(reuse.seq, _Resident([], salt, True, len(tokens), last_used))
        self._held.insert(reuse.seq, tokens, salt)
        return reuse

    def longest(self, tokens: list[int], busy: Mapping[int, BusyTokens], salt: str) -> tuple[int | None, int]:
        """Return the sequence with the longest usable prefix, and its length; (None, 0) if there is none.

        busy: see take().
        """
        if not self._partial:
            found = (index.match_whole(tokens, salt) for index in (self._idle, self._checkpoints))
            length, source = max(found, key=itemgetter(0))
            return source, length
        length, source = self._idle.match(tokens, salt)
        if source is not None and length < len(self._residents[source].tokens):
            n_whole, whole = self._idle.match_whole(tokens[:length], salt)
            if n_whole == length:  # it has no more tokens, so continuing it loses nothing
                source = whole
        longer = tokens[: length + 1]
        for seq, (held, n_usable) in busy.items():
            if held[: len(longer)] == longer and self._residents[seq].salt == salt:
                n = min(n_usable, common_prefix(held, tokens))
                if n > length:
                    source, length, longer = seq, n, tokens[: n + 1]
        return source, length

    def release(self, seq: int, tokens: list[int], salt: str | None = None, *, checkpoint: int = 0) -> None:
        """Count the sequence as idle, holding exactly these tokens, or as free if there are none.

        Args:
            seq: The sequence.
            tokens: What it holds.
            salt: Salt of the tokens; None for the one given to take().
            checkpoint: Length of the sequence's checkpoint. If sequences cannot be trimmed freely, this
                sequence can be trimmed to no other length.
        """
        self._forget_sequence(seq)
        if tokens and seq != self._last:  # consecutive turns of one conversation count as one use
            self._uses += 1
            self._last = seq
        resident = self._residents[seq]
        salt = resident.salt if salt is None else salt
        n_prompt = min(resident.n_prompt, len(tokens)) if resident.busy else 0
        self._put_resident(seq, _Resident(list(tokens), salt, False, n_prompt, self._uses))
        if tokens:
            self._idle.insert(seq, tokens, salt)
            self._held.insert(seq, tokens, salt)
        if checkpoint:
            self._checkpoints.insert(seq, tokens[:checkpoint], salt)

    def evict(self) -> Evicted | None:
        """Forget the idle conversation of lowest worth, and return it; None if there is none."""
        idle_contents = self._idle_sequences()
        if not idle_contents:
            return None
        seq = min(idle_contents, key=self._claim_loss)
        evicted = self._evicted_from(seq)
        self.erase(seq)
        return evicted

    def erase(self, seq: int) -> None:
        """Forget what an idle sequence holds. Raises ValueError if it is busy."""
        if self._residents[seq].busy:
            raise ValueError(f"sequence {seq} is busy")
        self._forget_sequence(seq)
        self._put_resident(seq, replace(self._residents[seq], tokens=[]))

    def idle(self) -> list[Evicted]:
        """Return all idle conversations, highest worth first."""
        return [
            self._evicted_from(seq)
            for seq in sorted(self._idle_sequences(), key=self._claim_loss, reverse=True)
        ]

    def idle_contents(self) -> dict[int, Evicted]:
        """Return the content of each sequence that is not busy; a free sequence has no tokens."""
        return {seq: self._evicted_from(seq) for seq, one in enumerate(self._residents) if not one.busy}

    @property
    def n_cells(self) -> int:
        """Return the number of cells of idle sequences; a cell shared by n sequences counts n times."""
        return self._n_cells

    @property
    def n_busy(self) -> int:
        return sum(r.busy for r in self._residents)

    def is_busy(self, seq: int) -> bool:
        return self._residents[seq].busy

    def _put_resident(self, seq: int, resident: _Resident) -> None:
        self._n_cells += len(resident.tokens) - len(self._residents[seq].tokens)
        self._residents[seq] = resident

    def _claim_least_loss(self, source: int | None, length: int) -> Reuse:
        """Claim the idle sequence whose loss costs least, for a prompt that shares a prefix with `source`.

        Args:
            source: The sequence with the longest common prefix; None: no sequence has one.
            length: Length of that prefix in tokens.
        """
        idle = [seq for seq, resident in enumerate(self._residents) if not resident.busy]
        seq = min(idle, key=lambda s: self._claim_loss(s, length if s == source else 0))
        return self._in_place(seq, source, length)

    def _in_place(self, seq: int, source: int | None, length: int) -> Reuse:
        """Return the Reuse that claims `seq` for a prompt whose first `length` tokens are in `source`.

        source: None if no sequence shares the prompt's beginning; `length` is then 0.
        """
        evicted = self._evicted_from(seq) if self._residents[seq].tokens else None
        if seq == source:
            lost = evicted if length * 2 < len(self._residents[seq].tokens) else None
            return Reuse(seq, length, seq, lost=lost)
        return Reuse(seq, length, seq if source is None else source, evicted)

    def _goes_on(self, source: int, length: int) -> bool:
        """Return True if a prompt that shares `length` tokens with `source` continues its idle conversation.

        The prompt must share at least half of the conversation's tokens. It must also share the prompt of the
        conversation's latest reply, except for the last TEMPLATE tokens. Otherwise two conversations that
        only begin with the same long text would count as one.
        """
        resident = self._residents[source]
        if resident.busy or length * 2 < len(resident.tokens):
            return False
        return length + TEMPLATE >= resident.n_prompt

    def _claim_loss(self, seq: int, n_kept: int = 0) -> tuple[bool, float, int, int]:
        """Return a sort key: the loss from claiming this idle sequence if n_kept of its tokens stay."""
        resident = self._residents[seq]
        if not resident.tokens:
            return False, 0.0, 0, resident.last_used
        n_shared = self._held.shared(seq) if self._partial else 0
        n_own = len(resident.tokens) - max(n_kept, n_shared)
        return True, worth_keeping(n_own, self._uses - resident.last_used), n_own, resident.last_used

    def _idle_sequences(self) -> list[int]:
        return [seq for seq, resident in enumerate(self._residents) if resident.tokens]

    def _evicted_from(self, seq: int) -> Evicted:
        resident = self._residents[seq]
        return Evicted(seq, resident.tokens, resident.salt)

    def _forget_sequence(self, seq: int) -> None:
        for index in (self._idle, self._checkpoints, self._held):
            if seq in index:
                index.remove(seq)


def worth_keeping(n_own: int, age: int) -> float:
    """Return the worth of keeping a conversation, in tokens.

    Args:
        n_own: Number of its tokens that no other sequence holds.
        age: Number of uses of other conversations since its own last use.
    """
    return max(0, n_own - ONE_STEP) * 0.5 ** (age / HALF_LIFE)
