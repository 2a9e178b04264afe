"""Which sequence of the KV cache holds what, and which one a new prompt should continue.

Pure bookkeeping over token ids: it returns what to do (Reuse, evictions), the engine does it. One
conversation per sequence; a prompt that continues an idle one takes its sequence over, a prompt that only
begins alike gets a copy of what they share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reuse:
    """Take this sequence, trim it to `length` tokens, and evaluate the prompt from there. If `source` is
    another sequence, `seq` is emptied and gets its first `length` tokens copied before."""

    seq: int
    length: int
    source: int


@dataclass(slots=True)
class _Resident:
    """One sequence: the tokens it holds while idle, or the length its busy session reserves."""

    tokens: list[int]
    busy: bool = False
    last_used: int = 0


class PrefixCache:
    """An index over the sequences of one KV cache. Idle sequences are what a new prompt may continue."""

    def __init__(self, n_seqs: int, *, partial: bool = True) -> None:
        """partial: whether a sequence may be trimmed to a shorter prefix (see Backend.can_trim)."""
        self._residents = [_Resident([]) for _ in range(n_seqs)]
        self._partial = partial
        self._tick = 0

    def take(self, tokens: list[int], busy: Mapping[int, list[int]] | None = None) -> Reuse | None:
        """Claim the best sequence for a prompt, None when all are busy. At least one prompt token is left
        to evaluate, since its logits are needed. busy: what some busy sequences hold.

        The longest common prefix is reused. Its sequence is taken over if it is idle and that keeps at least
        half of it; else the prefix goes to an empty sequence, or to the least recently used idle one.
        """
        idle = [seq for seq, resident in enumerate(self._residents) if not resident.busy]
        if not idle:
            return None
        shared = {seq: self._common(self._residents[seq].tokens, tokens) for seq in idle}
        if self._partial:
            shared |= {seq: self._common(held, tokens) for seq, held in (busy or {}).items()}
        source = max(shared, key=lambda seq: (shared[seq], self._residents[seq].last_used))
        seq = source
        if (
            self._residents[source].busy
            or shared[source] * 2 < len(self._residents[source].tokens)
            or shared[source] == 0
        ):
            seq = min(idle, key=lambda s: (len(self._residents[s].tokens) > 0, self._residents[s].last_used))
        resident = self._residents[seq]
        resident.busy, resident.tokens = True, []
        return Reuse(seq, shared[source], source)

    def release(self, seq: int, tokens: list[int]) -> None:
        """The sequence is idle again and holds exactly these tokens (none: free)."""
        self._tick += 1
        self._residents[seq] = _Resident(tokens, False, self._tick)

    def evict(self) -> int | None:
        """Forget the least recently used idle sequence that holds anything and return it, if any."""
        held = [s for s, r in enumerate(self._residents) if r.tokens and not r.busy]
        if not held:
            return None
        seq = min(held, key=lambda s: self._residents[s].last_used)
        self._residents[seq].tokens = []
        return seq

    @property
    def n_cells(self) -> int:
        """Cells held by idle sequences."""
        return sum(len(r.tokens) for r in self._residents)

    @property
    def n_busy(self) -> int:
        return sum(r.busy for r in self._residents)

    def _common(self, held: list[int], tokens: list[int]) -> int:
        n = common_prefix(held, tokens[: len(tokens) - 1])
        return n if self._partial or n == len(held) else 0


def common_prefix(a: list[int], b: list[int]) -> int:
    """How many leading items are equal. Bisects over slices, which compare in C."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
