"""Keep conversations in the KV cache while there is room, else as snapshots in host memory and on disk.

The engine claims a sequence for a session, and releases it afterwards. A conversation that has to leave the
KV cache is saved. A snapshot is loaded if that takes less time than evaluating its tokens again.
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

WORTH_SAVING = 64
"""Minimum tokens of a saved conversation: fewer take about one step to evaluate (ONE_STEP in PrefixCache)."""
LONG = 512
"""While the cost of a move is unknown, idle conversations leave only before a prompt of more new tokens."""
SHARE_NEW = 8
"""A conversation is written to disk again once more than 1/SHARE_NEW of its tokens are new.

So at most 8 times its size is written in all, and an eighth of it is lost in a crash. With 4: 4 times and a
quarter; with 16: 16 times and a sixteenth.
"""
LATER: Literal["later"] = "later"

Placed: TypeAlias = Reuse | Literal["later"] | None


class Residence:
    """Moves conversations between the KV cache and the tiers below, as PrefixCache decides."""

    def __init__(self, backend: Backend, sequences: Sequences, n_used: Callable[[], int]) -> None:
        """Begin with the KV cache alone, without memory or disk to save conversations in.

        n_used: Returns the number of cells of the KV cache in use, by busy sequences too.
        """
        self._backend = backend
        self._n_used = n_used
        self._sequences = sequences
        self.snapshots = Snapshots(memory_bytes=0)  # the tiers below the KV cache; none yet
        self._keep: Callable[[list[float]], None] = lambda memory: None
        self.copies = Copies()
        self._written: dict[int, int] = {}  # by sequence: tokens of its conversation when last written
        self.cache = PrefixCache(sequences.n_main, partial=backend.can_trim)
        self.move_costs = MoveCosts()

    def save_to(
        self, snapshots: Snapshots, memory: object = None, keep: Callable[[list[float]], None] | None = None
    ) -> None:
        """Set the tiers below the KV cache. Call it before the first request.

        Args:
            snapshots: The tiers.
            memory: Costs that an earlier process passed to its `keep`; invalid values are ignored.
            keep: Stores learned costs for the next process.
        """
        self.snapshots, self._keep = snapshots, keep or self._keep
        self.move_costs.recall(memory)

    def place(
        self, tokens: list[int], salt: str, busy: Mapping[int, BusyTokens], slot: int | None = None
    ) -> Placed:
        """Claim a sequence for a prompt, and load a snapshot of the prompt's beginning if that pays.

        Args:
            tokens: The prompt.
            salt: Salt of the prompt: only conversations with this salt are reused.
            busy: Tokens of the busy sequences; at least one sequence must not be busy.
            slot: The sequence to claim, which must not be busy; None: the best one.

        Returns:
            What to reuse; LATER while a snapshot is read from disk.
        """
        found = self._worth_loading(tokens, salt, busy)
        self._fit_copies()
        if found is not None and found.tier != "memory":
            self.snapshots.fetch(found.key)
            return LATER
        reuse = self.cache.take(tokens, busy, salt=salt, only=slot)
        assert reuse is not None, "all sequences are busy"
        # get the payload before anything is saved, which may push it out of memory
        data = self.snapshots.get(found.key, found.length) if found else None
        for leaving in (reuse.evicted, reuse.lost):
            self._save_leaving(leaving)
        self._forget_copy(reuse.seq)
        if found is None:
            return reuse
        n_loaded = found.length if data is not None and self._load_snapshot(found, data, reuse.seq) else 0
        return Reuse(reuse.seq, n_loaded, reuse.seq)

    def make_way(self, n_tokens: int) -> None:
        """Move idle conversations to host memory, as long as that pays, before n_tokens are evaluated."""
        if not self.snapshots.memory_bytes or (not self.move_costs.cell_bytes and n_tokens <= LONG):
            return
        if not self.move_costs.leaving_pays(n_tokens, 1):
            return  # leaving would not pay even if all are saved; checking that takes 0.1 ms with 32 of them
        n_moves = 1 if all(self._is_safe(one) for one in self._worth_saving()) else 2
        while self.move_costs.leaving_pays(n_tokens, n_moves) and (resting := self.cache.idle()):
            if not self._is_safe(resting[-1]) and not self._would_keep(
                resting[-1], idle=self._sequences.n_main
            ):
                return  # its snapshot would push out one that may be needed as soon
            self.evict()

    def copy_ahead(self) -> bool:
        """Do one piece of work of an idle engine; return False if there is none.

        The first possible piece of three is done: write an idle conversation to disk; copy the state of an
        idle conversation, so that the conversation can leave the KV cache at once; read one of the latest
        snapshots from disk.
        Copies, and snapshots read ahead, use only free host memory, and are made only if loading pays.
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
            if (data := self._saved_state(resting)) is not None:
                self.copies[resting.seq] = tuple(resting.tokens), data
                self._fit_copies()
            return data is not None
        return self.snapshots.fetch_ahead(self._sequences.n_main, room)

    def _write_ahead(self) -> bool:
        """Write to disk an idle conversation that a crash would lose; return False if there is none.

        The next start, or another lead with this directory, can load it. A conversation is tried again only
        after it has grown.
        """
        for resting in self._worth_saving():
            tokens, salt = resting.tokens, resting.salt
            n_new = len(tokens) - self.snapshots.n_saved(tokens, salt)
            if n_new * SHARE_NEW <= len(tokens) or self._written.get(resting.seq) == len(tokens):
                continue
            self._written[resting.seq] = len(tokens)
            data = self.copies.take(resting.seq, tokens) or self._saved_state(resting)
            if data is not None:
                self.snapshots.put(tokens, salt, data, n_loaded=len(tokens))
                self._fit_copies()
            return True
        return False

    def _fit_copies(self) -> None:
        """Drop copies of idle conversations until they fit into memory beside the snapshots."""
        self.copies.shrink(self.snapshots.free_bytes)

    def place_alone(self, salt: str) -> Reuse | None:
        """Evict all idle conversations, and claim an empty sequence for this salt; None if all are busy."""
        while self.evict():
            pass
        return self.place_empty(salt)

    def place_empty(self, salt: str, slot: int | None = None) -> Reuse | None:
        """Claim an empty sequence, or `slot` after emptying it, for this salt; None if all are busy."""
        reuse = self.cache.take([], salt=salt, only=slot)
        if reuse is not None:
            self._save_leaving(reuse.evicted)
            self._forget_copy(reuse.seq)
        return reuse

    def evict(self) -> bool:
        """Save the idle conversation of lowest worth, and empty its sequence; False if there is none."""
        evicted = self.cache.evict()
        if evicted is None:
            return False
        self._save_leaving(evicted)
        self._forget_copy(evicted.seq)
        self._sequences.trim(evicted.seq, 0)
        return True

    def erase(self, seq: int) -> None:
        """Empty an idle sequence without saving it. Raises ValueError if it is busy."""
        self.cache.erase(seq)
        self._forget_copy(seq)
        self._sequences.trim(seq, 0)

    def restore(self, seq: int, tokens: list[int], data: bytes, salt: str) -> None:
        """Load `data`, the state of `tokens`, into an idle sequence; the KV cache must be large enough.

        The sequence's conversation, and any that must make room, are saved first. Only prompts with this salt
        can continue the loaded one.

        Raises:
            ValueError: The sequence is busy.
            BackendError: The state cannot be used. The sequence is then free.
        """
        self._save_leaving(self.cache.idle_contents().get(seq))
        self.erase(seq)
        while self._n_used() + len(tokens) > self._backend.n_cells and self.evict():
            pass
        try:
            self._backend.load(seq, data)
        except BackendError:
            self._sequences.trim(seq, 0)
            raise
        self.cache.release(seq, tokens, salt)

    def save_all(self, timeout_s: float, *, copied: bool = False) -> None:
        """Save all idle conversations (if `copied`, only those with copies), and wait for the disk.

        Args:
            timeout_s: Maximum seconds to wait.
            copied: True if the model is stuck and cannot provide states.
        """
        self._keep(self.move_costs.memory())
        self.snapshots.at_work(False)
        for resting in self.cache.idle():
            if not copied or self.copies.has(resting.seq, resting.tokens):
                self._save_leaving(resting, at_end=True)
        unwritten = self.snapshots.flush(timeout_s)
        if unwritten:
            logger.warning(
                "%d conversations were not saved within %.0f s: their next turns evaluate them again",
                unwritten,
                timeout_s,
            )

    def _forget_copy(self, seq: int) -> None:
        """Forget the copy of an idle sequence."""
        self.copies.pop(seq, None)
        self._written.pop(seq, None)

    def _worth_loading(self, tokens: list[int], salt: str, busy: Mapping[int, BusyTokens]) -> Found | None:
        """Return the best snapshot for this prompt if loading it pays, else None."""
        if len(tokens) <= WORTH_SAVING:
            return None
        found = self.snapshots.match(tokens[:-1], salt)
        if found is None or not found.length:
            return None
        n_resident = self.cache.longest(tokens[:-1], busy, salt)[1]
        return found if self.move_costs.loading_pays(found, n_resident) else None

    def _load_snapshot(self, found: Found, data: bytes, seq: int) -> bool:
        """Replace the sequence's content by snapshot `found`; return False if loading fails or lacks room."""
        self._sequences.trim(seq, 0)
        while self._n_used() + found.n_tokens > self._backend.n_cells:
            if not self.evict():
                return False
        began = time.perf_counter()
        try:
            self._backend.load(seq, data)
        except BackendError as error:
            logger.warning("cannot load a saved conversation, so it is evaluated again: %s", error.message)
            self._sequences.trim(seq, 0)
            self.snapshots.forget(found.key)
            return False
        self.move_costs.moved(len(data), found.n_tokens, time.perf_counter() - began)
        return True

    def _save_leaving(self, leaving: Evicted | None, *, at_end: bool = False) -> None:
        """Save a conversation that leaves the KV cache, unless evaluating it again is quicker.

        Args:
            leaving: The conversation; None: do nothing.
            at_end: True if the server ends. No request waits then, so the conversation is saved even if
                evaluating it again is quicker.
        """
        if leaving is None or len(leaving.tokens) < WORTH_SAVING:
            return
        tokens, salt = leaving.tokens, leaving.salt
        data = self.copies.take(leaving.seq, tokens)
        pays = (at_end or self.move_costs.saving_pays) and self._would_keep(leaving)
        if data is None and pays and not self.snapshots.holds(tokens, salt, used=True):
            data = self._saved_state(leaving)
        if data is not None:
            self.snapshots.put(tokens, salt, data)
            self._fit_copies()

    def _saved_state(self, resting: Evicted) -> bytes | None:
        began = time.perf_counter()
        try:
            data = self._backend.save(resting.seq)
        except (BackendError, MemoryError) as error:
            logger.warning("cannot save a conversation: %s", error or "there is no memory for it")
            return None
        self.move_costs.moved(len(data), len(resting.tokens), time.perf_counter() - began)
        return data

    def _would_keep(self, leaving: Evicted, idle: int = 0) -> bool:
        """Return True if a snapshot of this conversation, saved now, would outlast `idle` uses of others."""
        n = len(leaving.tokens)
        return self.snapshots.keeps(n, n * self.move_costs.cell_bytes, idle)

    def _worth_saving(self) -> list[Evicted]:
        return [one for one in self.cache.idle() if len(one.tokens) >= WORTH_SAVING]

    def _is_safe(self, resting: Evicted) -> bool:
        """Return True if this conversation was copied or saved already."""
        copied = self.copies.has(resting.seq, resting.tokens)
        return copied or self.snapshots.holds(resting.tokens, resting.salt)
