"""Where conversations are: in the KV cache while there is room, else as snapshots in host memory and on disk.

The engine claims a sequence for a session and releases it. What leaves the KV cache for it is saved; a
snapshot is loaded if that takes less time than evaluating its tokens again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

from server.cache.catalogue import Found
from server.cache.prefix import BusyTokens, Evicted, PrefixCache, Reuse
from server.cache.snapshots import Snapshots
from server.engine.copies import Copies
from server.engine.move_costs import MoveCosts
from server.engine.sequences import Sequences
from server.errors import BackendError
from server.llama.backend import Backend

logger = logging.getLogger("duo.cache")

WORTH_SAVING = 64  # tokens: fewer are evaluated in about one step, like PrefixCache's ONE_STEP
LONG = 512  # new tokens: only for more does anybody leave before it was measured what leaving costs
# An eighth of a conversation has to be new before it is written again: files of 8 times its size in all, and
# an eighth is evaluated again after a crash. 4: 4 times and a quarter; 16: 16 times and a sixteenth.
SHARE_NEW = 8
LATER: Literal["later"] = "later"

Placed: TypeAlias = Reuse | Literal["later"] | None


class Residence:
    """Does what PrefixCache decides."""

    def __init__(self, backend: Backend, sequences: Sequences, n_held: Callable[[], int]) -> None:
        """n_held: cells in use, those of busy sequences included."""
        self._backend = backend
        self._n_held = n_held
        self._sequences = sequences
        self.snapshots = Snapshots(memory_bytes=0)  # the tiers below: none
        self._keep: Callable[[list[float]], None] = lambda memory: None
        self.copies = Copies()
        self._written: dict[int, int] = {}  # by sequence: tokens when what rests there was last written
        self.cache = PrefixCache(sequences.n_main, partial=backend.can_trim)
        self.move_costs = MoveCosts()

    def save_to(
        self, snapshots: Snapshots, memory: object = None, keep: Callable[[list[float]], None] | None = None
    ) -> None:
        """Set the tiers below, before the first request.

        memory: what `keep` was last given, or anything else.
        """
        self.snapshots, self._keep = snapshots, keep or self._keep
        self.move_costs.recall(memory)

    def place(
        self, tokens: list[int], salt: str, busy: Mapping[int, BusyTokens], slot: int | None = None
    ) -> Placed:
        """Claim a sequence that holds as much of the prompt as any tier has, or the sequence `slot`.

        To be called while a sequence, or that one, is not busy. Returns LATER while that is read from disk.
        """
        found = self._worth_loading(tokens, salt, busy)
        self._fit_copies()
        if found is not None and found.tier != "memory":
            self.snapshots.fetch(found.key)
            return LATER
        reuse = self.cache.take(tokens, busy, salt=salt, only=slot)
        assert reuse is not None, "all sequences are busy"
        # before anything is saved, which may push it out of memory
        data = self.snapshots.get(found.key, found.length) if found else None
        for leaving in (reuse.evicted, reuse.lost):
            self._save(leaving)
        self._forget(reuse.seq)
        if found is None:
            return reuse
        n_loaded = found.length if data is not None and self._load(found, data, reuse.seq) else 0
        return Reuse(reuse.seq, n_loaded, reuse.seq)

    def make_way(self, n_tokens: int) -> None:
        """Before n_tokens are evaluated: move idle conversations to host memory, while that pays."""
        if not self.snapshots.memory_bytes or (not self.move_costs.cell_bytes and n_tokens <= LONG):
            return
        if not self.move_costs.leaving_pays(n_tokens, 1):
            return  # not even if all are saved; to find out whether they are takes 0.1 ms with 32 of them
        n_moves = 1 if all(self._is_safe(one) for one in self._worth_saving()) else 2
        while self.move_costs.leaving_pays(n_tokens, n_moves) and (resting := self.cache.idle()):
            if not self._is_safe(resting[-1]) and not self._keeps(resting[-1], idle=self._sequences.n_main):
                return  # it would push out one that may come back as soon
            self.evict()

    def copy_ahead(self) -> bool:
        """Prepare for what may come, while the engine is idle. Returns whether there was anything to do.

        Writes one idle conversation to disk; when all are there, copies the state of one, so that it can
        leave the KV cache at once; when all are copied, reads one of the latest from disk. Copies and what is
        read use free host memory only, and are made only where loading them would pay.
        """
        if self._write_ahead():
            return True
        if not self.snapshots.memory_bytes or not self.move_costs.copying_pays:
            return False
        self._fit_copies()
        room = self.snapshots.free_bytes - self.copies.n_bytes
        for resting in self._worth_saving():
            if self._is_safe(resting) or self.move_costs.cell_bytes * len(resting.tokens) > room:
                continue
            if (data := self._saved(resting)) is not None:
                self.copies[resting.seq] = tuple(resting.tokens), data
                self._fit_copies()
            return data is not None
        return self.snapshots.fetch_ahead(self._sequences.n_main, room)

    def _write_ahead(self) -> bool:
        """Have an idle conversation written of which too much would be lost if this process were killed.

        It is for the next start, or for another lead with this directory. Each is tried once as it is.
        """
        for resting in self._worth_saving():
            tokens, salt = resting.tokens, resting.salt
            n_new = len(tokens) - self.snapshots.n_saved(tokens, salt)
            if n_new * SHARE_NEW <= len(tokens) or self._written.get(resting.seq) == len(tokens):
                continue
            self._written[resting.seq] = len(tokens)
            data = self.copies.take(resting.seq, tokens) or self._saved(resting)
            if data is not None:
                self.snapshots.put(tokens, salt, data, n_loaded=len(tokens))
                self._fit_copies()
            return True
        return False

    def _fit_copies(self) -> None:
        """Leave room to snapshots, which may have come from disk meanwhile."""
        self.copies.shrink(self.snapshots.free_bytes)

    def place_alone(self, salt: str) -> Reuse | None:
        """Claim an empty sequence of an empty KV cache."""
        while self.evict():
            pass
        return self.place_empty(salt)

    def place_empty(self, salt: str, slot: int | None = None) -> Reuse | None:
        """Claim an empty sequence, or this one emptied; None if all are busy."""
        reuse = self.cache.take([], salt=salt, only=slot)
        if reuse is not None:
            self._save(reuse.evicted)
            self._forget(reuse.seq)
        return reuse

    def evict(self) -> bool:
        """Save and empty the idle conversation that is worth least. False if there is none."""
        evicted = self.cache.evict()
        if evicted is None:
            return False
        self._save(evicted)
        self._forget(evicted.seq)
        self._sequences.trim(evicted.seq, 0)
        return True

    def erase(self, seq: int) -> None:
        """Empty an idle sequence without saving it. Raises ValueError if it is busy."""
        self.cache.erase(seq)
        self._forget(seq)
        self._sequences.trim(seq, 0)

    def restore(self, seq: int, tokens: list[int], data: bytes, salt: str) -> None:
        """Load this state, which must fit, into an idle sequence.

        What the sequence held is saved, and so is what has to make room.

        Raises:
            ValueError: The sequence is busy.
            BackendError: The state cannot be used; the sequence is free then.
        """
        self._save(self.cache.resting().get(seq))
        self.erase(seq)
        while self._n_held() + len(tokens) > self._backend.n_cells and self.evict():
            pass
        try:
            self._backend.load(seq, data)
        except BackendError:
            self._sequences.trim(seq, 0)
            raise
        self.cache.release(seq, tokens, salt)

    def save_all(self, timeout_s: float, *, copied: bool = False) -> None:
        """Save all idle conversations and wait until the disk has them.

        copied: only those whose states were copied to host memory.
        """
        self._keep(self.move_costs.memory())
        self.snapshots.at_work(False)
        for resting in self.cache.idle():
            if not copied or self.copies.has(resting.seq, resting.tokens):
                self._save(resting, at_end=True)
        unwritten = self.snapshots.flush(timeout_s)
        if unwritten:
            logger.warning("%d conversations were not saved within %.0f s", unwritten, timeout_s)

    def _forget(self, seq: int) -> None:
        """Forget what rested in this sequence."""
        self.copies.pop(seq, None)
        self._written.pop(seq, None)

    def _worth_loading(self, tokens: list[int], salt: str, busy: Mapping[int, BusyTokens]) -> Found | None:
        """Return the snapshot that is worth loading for this prompt."""
        if len(tokens) <= WORTH_SAVING:
            return None
        found = self.snapshots.match(tokens[:-1], salt)
        if found is None or not found.length:
            return None
        n_resident = self.cache.longest(tokens[:-1], busy, salt)[1]
        return found if self.move_costs.loading_pays(found, n_resident) else None

    def _load(self, found: Found, data: bytes, seq: int) -> bool:
        """Replace what the sequence holds by this snapshot. False if it has no room or is refused."""
        self._sequences.trim(seq, 0)
        while self._n_held() + found.n_tokens > self._backend.n_cells:
            if not self.evict():
                return False
        began = time.perf_counter()
        try:
            self._backend.load(seq, data)
        except BackendError as error:
            logger.warning("a saved conversation is not used: %s", error.message)
            self._sequences.trim(seq, 0)
            self.snapshots.forget(found.key)
            return False
        self.move_costs.moved(len(data), found.n_tokens, time.perf_counter() - began)
        return True

    def _save(self, leaving: Evicted | None, *, at_end: bool = False) -> None:
        """Save what leaves, unless evaluating it again is quicker. at_end: the server ends, nobody waits."""
        if leaving is None or len(leaving.tokens) < WORTH_SAVING:
            return
        tokens, salt = leaving.tokens, leaving.salt
        data = self.copies.take(leaving.seq, tokens)
        pays = (at_end or self.move_costs.saving_pays) and self._keeps(leaving)
        if data is None and pays and not self.snapshots.holds(tokens, salt, used=True):
            data = self._saved(leaving)
        if data is not None:
            self.snapshots.put(tokens, salt, data)
            self._fit_copies()

    def _saved(self, resting: Evicted) -> bytes | None:
        began = time.perf_counter()
        try:
            data = self._backend.save(resting.seq)
        except (BackendError, MemoryError) as error:
            logger.warning("a conversation is not saved: %s", error or "there is no memory for it")
            return None
        self.move_costs.moved(len(data), len(resting.tokens), time.perf_counter() - began)
        return data

    def _keeps(self, leaving: Evicted, idle: int = 0) -> bool:
        """Whether its state, if saved, is kept until `idle` other snapshots are used."""
        n = len(leaving.tokens)
        return self.snapshots.keeps(n, n * self.move_costs.cell_bytes, idle)

    def _worth_saving(self) -> list[Evicted]:
        return [one for one in self.cache.idle() if len(one.tokens) >= WORTH_SAVING]

    def _is_safe(self, resting: Evicted) -> bool:
        """Whether its state was copied or saved already."""
        copied = self.copies.has(resting.seq, resting.tokens)
        return copied or self.snapshots.holds(resting.tokens, resting.salt)
