"""Run the drafter's loop: handle leads' messages, extend paths, publish guesses."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Literal, TypeAlias

from drafters.drafter import Drafter
from server.drafting.draft_session import DraftSession
from server.errors import BackendError
from server.speculation.wire.bus import Bus
from server.speculation.wire.messages import Close, Commit, Message, Open, Refuse, Rows, Want
from server.speculation.wire.presence import Presence

logger = logging.getLogger("duo.drafter")

PUBLISH_S = 0.002  # seconds of guessing per message. Half: more messages; twice: guesses arrive later
# Minimum seconds between two messages for one session, times the number of drafted sessions: 16 ms with 16
# sessions, but at least PUBLISH_S. A lead drops a drafter's messages beyond 4,000 a second. With 16 sessions
# a drafter sends 1,750 a second; with half of this pause 2,700, without it 2,900 to 4,200. Tokens per second
# are equal if the lead drops no message (over real Redis, beside decodes that only wait).
MESSAGE_S = 0.001
WANT_S = 0.2  # seconds between two requests for a session: some slow round trips. Half: more are useless
LEASE_S = 5.0  # seconds without a message about a session until its lead is asked: a Close may be lost
UNANSWERED = 3  # silent LEASE_S intervals until a session is closed: cells are held for 15 s. Twice: 30 s
MAX_WANTED = 1024  # requested sessions that are remembered: bounds memory, has no other effect
MAX_FAILURES = 3  # consecutive failed decodes that end drafting for a session. Twice: 6 useless steps
TD_CHANGE = 0.2  # relative change of td (time per guess) to announce. Half: more messages; twice: older td

Arrival: TypeAlias = Message | tuple[Presence, ...] | Literal["wake"] | None


class Worker:
    """The drafter's loop, for every lead that does not refuse the drafter. Implements Listener.

    run() belongs to the main thread.
    """

    def __init__(
        self, bus: Bus, own: Presence, drafter: Drafter, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._bus = bus
        self._own = own
        self._drafter = drafter
        self._clock = clock
        self._arrived: SimpleQueue[Arrival] = SimpleQueue()
        self._sessions: dict[int, DraftSession] = {}
        self._wanted: dict[int, float] = {}
        self._present: set[str] = set()
        self._refusals: dict[str, str] = {}
        self._busy: list[DraftSession] = []  # sessions whose next guess is worth making
        self._idle = True  # True if there is nothing to do until a message arrives
        self._published_at = 0.0
        drafter.watch(lambda: not self._arrived.empty(), lambda: self._arrived.put("wake"))
        self.n_drafted = 0

    # -- the bus's reader thread

    def received(self, message: Message) -> None:
        self._arrived.put(message)

    def peers(self, present: Sequence[Presence]) -> None:
        self._arrived.put(tuple(present))

    def stop(self) -> None:
        """End run(). Safe from any thread and from a signal handler."""
        self._arrived.put(None)

    # -- any thread; values may be stale

    @property
    def n_sessions(self) -> int:
        return len(self._sessions)

    @property
    def leads(self) -> list[str]:
        """Return the ids of the leads that accept this drafter."""
        return sorted(self._present - self._refusals.keys())

    # -- the main thread

    def run(self) -> None:
        """Draft until stop()."""
        while self.turn():
            pass

    def turn(self, *, wait: bool = True) -> bool:
        """Handle messages that arrived, then advance every session once; return False after stop().

        With `wait`, it blocks while there is nothing to do.
        """
        if not self._take_in(wait and self._idle):
            return False
        progress = bool(self._busy) and self._advance_sessions(self._busy)
        self._renew_leases()
        self._busy = self._servable_sessions()
        self._idle = not progress or not self._busy
        self._publish_guesses(all_of_it=self._idle)
        self._announce_td()
        return True

    def _servable_sessions(self) -> list[DraftSession]:
        return [s for s in self._sessions.values() if self._drafter.wants(s) and not self._is_hindered(s)]

    def _is_hindered(self, session: DraftSession) -> bool:
        """Return True if the session cannot be drafted; log the reason the first time."""
        obstacle = self._drafter.obstacle(session)
        if obstacle and not session.is_obstructed:
            session.is_obstructed = True
            logger.info("not drafting for a session of %s: %s", session.lead, obstacle)
        return obstacle is not None or session.n_failures >= MAX_FAILURES

    def _advance_sessions(self, sessions: list[DraftSession]) -> bool:
        """Take one step for all sessions; return True if any session could take guesses.

        After a failed step its sessions are advanced one by one, to find the faulty session.
        """
        sound = [session for session in sessions if not session.n_failures]
        suspects = [[session] for session in sessions if session.n_failures]
        progress = False
        for group in filter(None, [sound, *suspects]):
            try:
                grown = self._drafter.advance(group)
            except BackendError as error:
                progress = True
                self._count_failure(group, error)
                continue
            progress = progress or grown is not None
            for session in grown or ():
                self.n_drafted += 1
                session.n_failures = 0
        return progress

    def _count_failure(self, group: list[DraftSession], error: BackendError) -> None:
        logger.warning("a decode of drafts failed: %s", error.message)
        for session in group:
            session.n_failures += 1
            if session.n_failures == MAX_FAILURES:
                logger.warning("drafting for a session of %s ends: its decodes keep failing", session.lead)

    def _publish_guesses(self, *, all_of_it: bool) -> None:
        """Send guesses: the first guesses of a path at once, later guesses at intervals (see PUBLISH_S).

        Guesses of branches, the alternatives to a path, are sent after the path's guesses.

        all_of_it: True to send all guesses at once.
        """
        now, td_us = self._clock(), self._td_us
        apart_s = max(PUBLISH_S, MESSAGE_S * len(self._busy))
        all_of_it = all_of_it or now + td_us / 1e6 - self._published_at > apart_s
        for session in self._sessions.values():
            if session.lost or (session.path.n_published and not all_of_it):
                continue
            for draft in session.take_drafts(self._own.id, td_us, all_of_it=all_of_it):
                self._bus.send(session.lead, draft)
                self._published_at = now

    @property
    def _td_us(self) -> int:
        return round(self._drafter.td.value * 1e6)

    def _announce_td(self) -> None:
        td_us, told = self._td_us, self._own.td_us
        if abs(td_us - told) > TD_CHANGE * told:
            self._own = replace(self._own, td_us=td_us)
            self._bus.describe(self._own)

    # -- arrivals

    def _take_in(self, wait: bool) -> bool:
        if not wait and self._arrived.empty():
            return True
        try:
            arrival = self._arrived.get(block=wait, timeout=LEASE_S if self._sessions else None)
            while arrival is not None:
                self._handle_arrival(arrival)
                arrival = self._arrived.get_nowait()
        except Empty:
            self._busy = self._servable_sessions()
            return True
        return False

    def _handle_arrival(self, arrival: Message | tuple[Presence, ...] | Literal["wake"]) -> None:
        match arrival:
            case Open():
                self._open_session(arrival)
            case Commit():
                self._commit_tokens(arrival)
            case Rows():
                if (session := self._sessions.get(arrival.session)) is not None:
                    session.rows.append(arrival)
            case Close():
                session = self._sessions.get(arrival.session)
                if session is not None and session.lead == arrival.lead:
                    self._close_session(session, keep=arrival.keep)
            case Refuse():
                self._note_refusal(arrival)
            case tuple():
                self._meet_leads(arrival)
            case _:
                pass  # messages for leads; "wake" only ends the wait

    def _open_session(self, message: Open) -> None:
        if message.lead in self._refusals or not message.tokens:
            return
        self._wanted.pop(message.session, None)
        session = self._sessions.get(message.session)
        if session is None:
            session = self._sessions[message.session] = DraftSession(message)
        elif session.lead == message.lead:
            session.reopen(message)
            session.n_failures = 0
        session.heard_at = self._clock()

    def _commit_tokens(self, message: Commit) -> None:
        session = self._sessions.get(message.session)
        if session is not None:
            session.heard_at = self._clock()
            if not session.commit(message):
                self._want_session(session.id, [session.lead])
        else:
            self._want_session(message.session, self.leads)

    def _renew_leases(self) -> None:
        """Ask leads about silent sessions, and close those that no lead answers for."""
        now = self._clock()
        for session in list(self._sessions.values()):
            silent_s = now - session.heard_at
            if silent_s > UNANSWERED * LEASE_S:
                self._close_session(session, keep=True)
            elif silent_s > LEASE_S:
                n_known = 0 if session.lost else session.n_committed
                self._want_session(session.id, [session.lead], n_known, every_s=LEASE_S)

    def _want_session(
        self, session: int, leads: list[str], n_known: int = 0, every_s: float = WANT_S
    ) -> None:
        """Ask leads for a session whose first n_known tokens are known here, at most once per every_s."""
        now = self._clock()
        if now - self._wanted.get(session, -every_s) < every_s:
            return
        if len(self._wanted) >= MAX_WANTED:
            self._wanted.clear()
        self._wanted[session] = now
        for lead in leads:
            self._bus.send(lead, Want(self._own.id, session, n_known))

    def _note_refusal(self, message: Refuse) -> None:
        if message.lead not in self._refusals:
            logger.warning("lead %s refuses this drafter: %s", message.lead, message.reason)
        self._refusals[message.lead] = message.reason
        self._close_all(message.lead)

    def _meet_leads(self, leads: tuple[Presence, ...]) -> None:
        present = {lead.id for lead in leads}
        for lead in leads:
            if lead.id not in self._present:
                logger.info("lead %s (%s) joined", lead.id, lead.model)
            if lead.wire != self._own.wire and lead.id not in self._refusals:
                reason = f"it speaks version {lead.wire} of the wire, this drafter version {self._own.wire}"
                logger.warning("cannot draft for lead %s: %s", lead.id, reason)
                self._refusals[lead.id] = reason
        for gone in self._present - present:
            logger.info("lead %s left", gone)
            self._refusals.pop(gone, None)
            self._close_all(gone)
        self._present = present

    def _close_all(self, lead: str) -> None:
        for session in [session for session in self._sessions.values() if session.lead == lead]:
            self._close_session(session, keep=True)

    def _close_session(self, session: DraftSession, *, keep: bool) -> None:
        del self._sessions[session.id]
        self._wanted.pop(session.id, None)
        self._drafter.close(session, keep=keep)
