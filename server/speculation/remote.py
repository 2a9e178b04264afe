"""The lead's side of the bus: tells drafters what is committed, collects what they guess.

The bus's reader thread only appends to a queue; everything else happens on the engine thread, in drain().
Nothing a drafter sends reaches the engine unchecked: ids in range, base and chain matching, rates bounded.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from server.engine.proposer import NOTHING, Proposal
from server.sampling.params import SamplingParams
from server.speculation.bus import Bus
from server.speculation.messages import Close, Commit, Draft, Message, Open, Refuse, Want, chain_start
from server.speculation.presence import Presence, misfit
from server.speculation.tree import ScoredTree

logger = logging.getLogger("duo.drafters")

MAX_RATE = 4000  # messages per second of one drafter; what is above is dropped
MAX_QUEUED = 20_000  # messages waiting for the engine thread


@dataclass(slots=True)
class DrafterRecord:
    """What this lead knows of one drafter. refusal: why it is not used, None when it is."""

    presence: Presence
    refusal: str | None
    counts: dict[str, int] = field(default_factory=dict[str, int])
    window: int = 0
    n_window: int = 0

    def count(self, what: str, n: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + n


@dataclass(slots=True)
class _Speculated:
    """One open session. wire_id is unique across the leads of a pool; tokens is the engine's own list."""

    wire_id: int
    tokens: Sequence[int]
    sampling: SamplingParams
    epoch: int = 0
    tree: ScoredTree | None = None  # None as long as nobody drafts


class RemoteProposer:
    """Implements Proposer over a Bus, and Listener for it."""

    def __init__(
        self, bus: Bus, own: Presence, *, max_ahead: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """own: this lead's presence; max_ahead: how far past the committed tokens drafters shall draft."""
        self._bus = bus
        self._own = own
        self._max_ahead = max_ahead
        self._clock = clock
        self._arrived: deque[Message | tuple[Presence, ...]] = deque(maxlen=MAX_QUEUED)
        self._drafters: dict[str, DrafterRecord] = {}
        self._sessions: dict[int, _Speculated] = {}
        self._by_wire: dict[int, _Speculated] = {}
        self._wire_ids = itertools.count(secrets.randbits(48) << 16)

    # -- Listener: the bus's reader thread ----------------------------------------

    def received(self, message: Message) -> None:
        self._arrived.append(message)

    def peers(self, present: Sequence[Presence]) -> None:
        self._arrived.append(tuple(present))

    # -- Proposer: the engine thread ----------------------------------------

    def drain(self) -> None:
        while self._arrived:
            item = self._arrived.popleft()
            if isinstance(item, tuple):
                self._meet(item)
            elif isinstance(item, Draft):
                self._graft(item)
            elif isinstance(item, Want):
                self._reopen(item)

    def open(self, session: int, tokens: Sequence[int], sampling: SamplingParams) -> None:
        speculated = _Speculated(next(self._wire_ids), tokens, sampling.mirrored())
        self._sessions[session] = speculated
        self._by_wire[speculated.wire_id] = speculated
        self._announce(speculated, self._accepted())

    def propose(self, session: int, limit: int) -> Proposal:
        speculated = self._sessions.get(session)
        if speculated is None or speculated.tree is None:
            return NOTHING
        return speculated.tree.best(limit)

    def committed(self, session: int, n: int, proposal: Proposal, accepted: Sequence[int]) -> None:
        speculated = self._sessions.get(session)
        if speculated is None or speculated.tree is None:
            return
        tokens = tuple(speculated.tokens[-n:])
        base = speculated.tree.position
        speculated.tree.commit(tokens)
        message = Commit(speculated.wire_id, speculated.epoch, base, speculated.tree.chain, tokens)
        for drafter in self._accepted():
            self._bus.send(drafter, message)
        for node, source in enumerate(proposal.sources):
            record = self._drafters.get(source)
            if record:
                record.count("drafted")
                record.count("accepted", int(node in accepted))

    def close(self, session: int, *, keep: bool) -> None:
        speculated = self._sessions.pop(session, None)
        if speculated is None:
            return
        del self._by_wire[speculated.wire_id]
        if speculated.tree is not None:
            message = Close(speculated.wire_id, speculated.epoch, keep)
            for drafter in self._accepted():
                self._bus.send(drafter, message)

    def idle(self) -> bool:
        return not self._sessions and not self._by_wire

    # -- what others may know ----------------------------------------

    def drafters(self) -> list[DrafterRecord]:
        """Everybody present, refused ones included. A copy; safe from any thread."""
        return list(self._drafters.values())

    # -- arrivals ----------------------------------------

    def _meet(self, present: Sequence[Presence]) -> None:
        """Drafters joined or left: open all sessions for those that joined."""
        now = {presence.id: presence for presence in present}
        for gone in [drafter for drafter in self._drafters if drafter not in now]:
            del self._drafters[gone]
            logger.info("drafter %s left", gone)
        joined = [presence for id, presence in now.items() if id not in self._drafters]
        for presence in joined:
            refusal = misfit(self._own.vocabulary, presence.vocabulary)
            self._drafters[presence.id] = DrafterRecord(presence, refusal)
            if refusal:
                logger.warning("drafter %s (%s) refused: %s", presence.id, presence.model, refusal)
                self._bus.send(presence.id, Refuse(self._own.id, refusal))
                continue
            logger.info("drafter %s (%s) joined", presence.id, presence.model)
            for speculated in self._sessions.values():
                self._announce(speculated, [presence.id])
        for presence in now.values():
            self._drafters[presence.id].presence = presence

    def _announce(self, speculated: _Speculated, drafters: Sequence[str]) -> None:
        """Send Open with everything committed so far."""
        if not drafters:
            return
        tokens = tuple(speculated.tokens)
        if speculated.tree is None:
            speculated.tree = ScoredTree(len(tokens), chain_start(tokens))
        message = Open(
            self._own.id,
            speculated.wire_id,
            speculated.epoch,
            speculated.tree.chain,
            self._max_ahead,
            speculated.sampling,
            tokens,
        )
        for drafter in drafters:
            self._bus.send(drafter, message)

    def _reopen(self, want: Want) -> None:
        speculated = self._by_wire.get(want.session)
        record = self._drafters.get(want.drafter)
        if speculated and record and not record.refusal and self._within_rate(record):
            self._announce(speculated, [want.drafter])

    def _graft(self, draft: Draft) -> None:
        record = self._drafters.get(draft.drafter)
        if record is None or record.refusal or not self._within_rate(record):
            return
        speculated = self._by_wire.get(draft.session)
        if speculated is None or speculated.tree is None or draft.epoch != speculated.epoch:
            record.count("stale")
        elif not all(0 <= token < self._own.vocabulary.size for token in draft.tokens):
            record.count("invalid")
        else:
            record.count(speculated.tree.graft(draft))

    def _within_rate(self, record: DrafterRecord) -> bool:
        window = int(self._clock())
        if window != record.window:
            record.window, record.n_window = window, 0
        record.n_window += 1
        if record.n_window == MAX_RATE:
            logger.warning("drafter %s sends too much: ignored for a moment", record.presence.id)
        return record.n_window < MAX_RATE

    def _accepted(self) -> list[str]:
        return [id for id, record in self._drafters.items() if not record.refusal]
