"""Connect the lead to drafters on the bus: send commits, collect guesses.

The bus's reader thread only stores messages and who is present; drain() handles them on the engine thread.
All that a drafter sends is checked before it is used: range of ids, base and chain, rate of messages.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from server.engine.proposer import CountsBySource
from server.llama.backend import RowGiver
from server.speculation.hits import HitRates
from server.speculation.sources.assignment import APART, MAX_PER_SESSION, assign
from server.speculation.sources.drafter_record import MAX_RATE, N_ASSIGNED, DrafterRecord
from server.speculation.sources.row_sending import meet_readers, send_rows
from server.speculation.sources.yields import JUDGED, Yields
from server.speculation.speculated import Speculated
from server.speculation.wire.bus import Bus
from server.speculation.wire.messages import Close, Commit, Draft, Message, Open, Refuse, Want, hashed_salt
from server.speculation.wire.presence import Presence, refusal

logger = logging.getLogger("duo.drafters")

MAX_UNREAD = 5 * MAX_RATE  # messages waiting for the engine thread: five seconds of one drafter


class RemoteDrafters:
    """The drafters on a bus, whose guesses are added to sessions' trees. Implements Listener."""

    def __init__(
        self,
        bus: Bus,
        own: Presence,
        *,
        max_ahead: int,
        clock: Callable[[], float] = time.monotonic,
        overlaps: bool = False,
        target: RowGiver | None = None,
    ) -> None:
        """Begin without drafters.

        Args:
            bus: Connects to drafters.
            own: This lead's presence.
            max_ahead: Maximum tokens to guess past the committed ones.
            clock: Returns the time in seconds.
            overlaps: True if a GPU decodes, so that drafters on the lead's cores do not slow its prompts.
            target: Gives hidden rows for drafters with a head; None: there are no rows.
        """
        self._bus, self._target = bus, target
        self._rows: RowGiver | None = None  # the target, while a drafter reads hidden rows
        self._shares_prompts = not overlaps
        self.own = own
        self._max_ahead, self._clock = max_ahead, clock
        self.hits = HitRates()  # of every source, over all sessions
        self._yields = Yields()
        self._left = JUDGED  # steps until the next _review()
        self._arrived: deque[tuple[float, Draft | Want]] = deque(maxlen=MAX_UNREAD)
        self._joins = itertools.count()
        self._present: dict[str, tuple[int, Presence]] = {}  # by id: number of its join, presence
        self._met = self._present  # the latest _present that drain() has handled
        self._drafters: dict[str, DrafterRecord] = {}
        self.hosts: dict[str, list[DrafterRecord]] = {}  # drafters that are not refused, by machine
        self._sessions: dict[int, Speculated] = {}  # by wire id
        # by wire id: sessions whose prompt is being evaluated, on cores that drafters may use, too
        self._prompts: dict[int, Speculated] = {}
        self.may_draft = False  # True if any drafter is neither refused nor paused

    # -- Listener: the bus's reader thread ----------------------------------------

    def received(self, message: Message) -> None:
        if isinstance(message, Draft | Want):
            self._arrived.append((self._clock(), message))

    def peers(self, present: Sequence[Presence]) -> None:
        before = self._present
        self._present = {p.id: (before[p.id][0] if p.id in before else next(self._joins), p) for p in present}

    # -- the engine thread ----------------------------------------

    def drain(self) -> None:
        """Handle joins, departures and messages since the last call."""
        if self._prompts:
            self._begin()
        if self._present is not self._met:
            self._met = self._present
            self._meet(self._met)
        self._left -= 1
        if not self._left:
            self._review()
        self.take_in()

    def take_in(self) -> None:
        """Add the guesses that arrived to trees, and answer drafters' questions (Want)."""
        while self._arrived:
            at, message = self._arrived.popleft()
            record = self._drafters.get(message.drafter)
            if record is None or record.refusal or not record.within_rate(at):
                continue
            if isinstance(message, Draft):
                self._graft(message, record)
            else:
                self._answer(message, record)

    def open(self, speculated: Speculated) -> None:
        """Send drafters a session. If this raises, close() undoes it.

        If the lead evaluates on the CPU, drafters on the lead's cores get the session only once its
        first token is committed: reading the prompt earlier would slow the lead's own prefill.
        """
        self._sessions[speculated.wire_id] = speculated
        if self._shares_prompts:
            self._prompts[speculated.wire_id] = speculated
        self._assign(speculated)

    def _begin(self) -> None:
        """Send drafters on the lead's cores the sessions whose first token was committed meanwhile."""
        for wire_id, speculated in list(self._prompts.items()):
            if len(speculated.session.tokens) > speculated.n_prompt:
                del self._prompts[wire_id]
                self._assign(speculated)

    def send_commits(self, speculated: Speculated) -> None:
        """Send the session's drafters the tokens committed since the last call."""
        tokens, n_sent = speculated.session.tokens, speculated.n_sent
        speculated.n_sent = len(tokens)
        if speculated.drafters and n_sent < len(tokens):
            if self._rows:
                send_rows(self._bus, self._rows, speculated, self._drafters, speculated.drafters)
            message = Commit(speculated.wire_id, n_sent, speculated.tree.chain, tuple(tokens[n_sent:]))
            for drafter in speculated.drafters:
                self._bus.send(drafter, message)

    def spare(self, speculated: Speculated) -> None:
        """Close the session at its drafters until resume()."""
        speculated.is_spared = True
        self._release(speculated, keep=True)

    def resume(self, speculated: Speculated) -> None:
        """Open the session at drafters again."""
        speculated.is_spared = False
        self._assign(speculated)

    def close(self, speculated: Speculated, *, keep: bool) -> None:
        """Send the session's last tokens to its drafters, and close it there; `keep`: they keep its KV."""
        self.send_commits(speculated)
        self._sessions.pop(speculated.wire_id, None)
        self._prompts.pop(speculated.wire_id, None)
        self._release(speculated, keep=keep)

    def _release(self, speculated: Speculated, *, keep: bool) -> None:
        """Close the session at its drafters. If one of them was full, assign drafters to other sessions."""
        waited_for = any(self._drafters[drafter].is_full for drafter in speculated.drafters)
        for drafter in list(speculated.drafters):
            self._withdraw(speculated, drafter, keep=keep)
        if waited_for:
            for other in sorted(self._sessions.values(), key=lambda one: len(one.drafters)):
                self._assign(other)

    def count(self, tally: CountsBySource) -> None:
        """Count verified and accepted guesses of drafters."""
        for source, (drafted, accepted) in tally.items():
            record = self._drafters.get(source)
            if record:
                record.counts.update(drafted=drafted, accepted=accepted)

    def pause(self, records: Sequence[DrafterRecord], reason: str) -> None:
        """Pause drafters, which closes all their sessions; an empty reason resumes them."""
        for record in records:
            if record.pause(reason, self._clock()):
                for speculated in self._sessions.values():
                    self._withdraw(speculated, record.presence.id, keep=True)
        self._assign_all()

    def _withdraw(self, speculated: Speculated, drafter: str, *, keep: bool) -> None:
        """Close the session at this drafter, if the drafter has it; `keep`: the drafter keeps its cells."""
        if drafter in speculated.drafters:
            del speculated.drafters[drafter]
            speculated.heard = speculated.heard and bool(speculated.drafters)
            self._bus.send(drafter, Close(self.own.id, speculated.wire_id, keep))
            self._drafters[drafter].n_assigned -= 1

    @property
    def drafting(self) -> bool:
        """True if any drafter has a session."""
        return any(map(N_ASSIGNED, self._drafters.values()))

    # -- what others may know ----------------------------------------

    def drafters(self) -> list[DrafterRecord]:
        """Return all drafters present, including refused ones. A copy; safe from any thread."""
        return list(self._drafters.values())

    # -- arrivals ----------------------------------------

    def _meet(self, present: Mapping[str, tuple[int, Presence]]) -> None:
        """Update the drafters, and assign sessions to those that joined."""
        for id, record in list(self._drafters.items()):
            if id not in present or present[id][0] != record.join:
                del self._drafters[id]
                for speculated in self._sessions.values():
                    speculated.drafters.pop(id, None)
                    speculated.yields.pop(id, None)
                    speculated.resent.pop(id, None)
                logger.info("drafter %s left", id)
        for id, (join, presence) in present.items():
            if id in self._drafters:
                self._drafters[id].presence = presence
            else:
                self._admit(join, presence)
        used = [record for record in self._drafters.values() if not record.refusal]
        hosts = {record.presence.host for record in used}
        self.hosts = {host: [r for r in used if r.presence.host == host] for host in hosts}
        self._rows = meet_readers(self._target, used)
        self._assign_all()

    def _admit(self, join: int, presence: Presence) -> None:
        reason = refusal(self.own, presence)
        self._drafters[presence.id] = DrafterRecord(join, presence, reason)
        if reason:
            logger.warning("drafter %s (%s) refused: %s", presence.id, presence.model, reason)
            self._bus.send(presence.id, Refuse(self.own.id, reason))
        else:
            logger.info("drafter %s (%s) joined", presence.id, presence.model)

    def _assign_all(self) -> None:
        """Assign drafters to all sessions again, after the drafters that may draft have changed."""
        self.may_draft = any(not record.paused for records in self.hosts.values() for record in records)
        for speculated in self._sessions.values():
            self._assign(speculated)

    def _assign(self, speculated: Speculated) -> None:
        """Open the session at the best free drafters, up to MAX_PER_SESSION in all."""
        if speculated.is_spared or len(speculated.drafters) >= MAX_PER_SESSION:
            return
        shares = {
            id: self._yields.share(speculated, id)
            for id, record in self._drafters.items()
            if record.is_free and self._may_serve(record, speculated)
        }
        for drafter in assign(speculated.wire_id, shares, taken=len(speculated.drafters)):
            self._place(speculated, drafter)

    def _may_serve(self, record: DrafterRecord, speculated: Speculated) -> bool:
        """Return True if the session is not open at this drafter yet, and may be opened there."""
        id = record.presence.id
        if id in speculated.drafters or not speculated.allows(id):
            return False
        return speculated.wire_id not in self._prompts or record.presence.kernel != self.own.kernel

    def _place(self, speculated: Speculated, drafter: str) -> None:
        """Open the session at this drafter."""
        self.send_commits(speculated)
        self._yields.begin(speculated, drafter)
        self._drafters[drafter].n_assigned += 1
        self._announce(speculated, drafter)

    def _review(self) -> None:
        """Measure drafters' contributions, and replace each session's worst drafter if that pays."""
        self._left, yields = JUDGED, self._yields
        n_tokens = sum(map(yields.measure, self._sessions.values()))
        for id, record in self._drafters.items():
            if not record.n_assigned:
                yields.wait(id, n_tokens)
        for speculated in self._sessions.values() if n_tokens else ():
            if speculated.drafters:
                self._exchange(speculated)

    def _exchange(self, speculated: Speculated) -> None:
        """Withdraw the session from its worst drafter, if that is likely to make more guesses right.

        Either this drafter then serves a session without drafters, or a better free drafter replaces it.
        """
        share, fits = partial(self._yields.share, speculated), self._yields.fits
        worst = min(speculated.drafters, key=share)
        record, enough = self._drafters[worst], share(worst) + APART
        for other in self._sessions.values() if record.is_full else ():
            if other.drafters or other.is_spared or not self._may_serve(record, other):
                continue
            if fits(other, worst) > fits(speculated, worst) + APART:
                self._withdraw(speculated, worst, keep=True)
                return self._place(other, worst)
        if len(speculated.drafters) < MAX_PER_SESSION or enough > 1.0:
            return None
        free = [record for record in self._drafters.values() if record.is_free]
        ids = [one.presence.id for one in free if self._may_serve(one, speculated)]
        best = max(ids, key=share, default=worst)
        if share(best) > enough:
            self._withdraw(speculated, worst, keep=True)
            self._place(speculated, best)
        return None

    def _announce(self, speculated: Speculated, drafter: str) -> None:
        """Send this drafter an Open message: the session and all tokens committed so far."""
        told = speculated.session
        message = Open(
            self.own.id,
            speculated.wire_id,
            speculated.tree.chain,
            self._max_ahead,
            told.sampling,
            tuple(told.tokens),
            hashed_salt(told.bounds.salt),
            told.n_dropped,
        )
        self._bus.send(drafter, message)
        if self._rows:
            speculated.n_rows_sent[drafter] = 0
            send_rows(self._bus, self._rows, speculated, self._drafters, [drafter])

    def _answer(self, want: Want, record: DrafterRecord) -> None:
        """Answer a drafter's question whether a session is open: a Close or an Open may have been lost."""
        speculated = self._sessions.get(want.session)
        if speculated is None or want.drafter not in speculated.drafters:
            self._bus.send(want.drafter, Close(self.own.id, want.session, keep=True))
            return
        n_sent = speculated.n_sent
        self.send_commits(speculated)
        if want.n_known == n_sent < speculated.tree.position:
            return  # the tokens that it lacks are on the way
        if want.n_known == speculated.tree.position:
            chain = speculated.tree.chain
            self._bus.send(want.drafter, Commit(want.session, want.n_known, chain, ()))
        else:
            self._resend(speculated, record)

    def _resend(self, speculated: Speculated, record: DrafterRecord) -> None:
        """Resend the session to a drafter that missed a message, if the limit of resent tokens allows it."""
        if record.may_resend_tokens(speculated.tree.position):
            self._announce(speculated, record.presence.id)

    def _graft(self, draft: Draft, record: DrafterRecord) -> None:
        speculated = self._sessions.get(draft.session)
        if speculated is None or draft.drafter not in speculated.drafters:
            record.counts["stale"] += 1
        elif draft.tokens and not 0 <= min(draft.tokens) <= max(draft.tokens) < self.own.vocabulary.size:
            record.counts["invalid"] += 1
        else:
            speculated.heard = True
            outcome = speculated.tree.graft(draft)
            record.counts[outcome] += 1
            record.td_us = draft.td_us
            if outcome == "lost" and speculated.may_resend(draft.drafter, self._max_ahead):
                self._resend(speculated, record)
