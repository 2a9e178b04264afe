"""The drafter's loop: take in what leads say, extend paths, publish them as they grow."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import TypeAlias

from drafters.drafter import Drafter
from drafters.session import DraftSession
from server.errors import BackendError
from server.speculation.bus import Bus
from server.speculation.messages import Close, Commit, Message, Open, Refuse, Want
from server.speculation.presence import Presence

logger = logging.getLogger("duo.drafter")

PUBLISH_S = 0.002  # guesses of about this long go into one message
WANT_S = 0.2  # between two requests for the same Open
MAX_FAILURES = 3  # decodes that may fail before a session is left alone

Arrival: TypeAlias = Message | tuple[Presence, ...] | None


class Worker:
    """Serves every lead that does not refuse it. Implements Listener; run() is the drafter's main thread."""

    def __init__(
        self, bus: Bus, own: Presence, drafter: Drafter, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._bus = bus
        self._own = own
        self._drafter = drafter
        self._clock = clock
        self._arrived: SimpleQueue[Arrival] = SimpleQueue()
        self._sessions: dict[int, DraftSession] = {}
        self._failures: dict[int, int] = {}
        self._wanted: dict[int, float] = {}
        self._leads: set[str] = set()
        self._refusals: dict[str, str] = {}
        self._published_at = 0.0
        self._told_td_us = 0
        self.n_drafted = 0

    # -- the bus's reader thread

    def received(self, message: Message) -> None:
        self._arrived.put(message)

    def peers(self, present: Sequence[Presence]) -> None:
        self._arrived.put(tuple(present))

    def stop(self) -> None:
        """End run(). Safe from any thread and from a signal handler."""
        self._arrived.put(None)

    # -- the main thread

    def run(self) -> None:
        """Draft until stop()."""
        while self.turn():
            pass

    def turn(self, *, wait: bool = True) -> bool:
        """Take in what arrived, then advance every session once. Blocks when there is nothing to do, unless
        told not to. Returns False after stop()."""
        if not self._take_in(wait and not self._busy()):
            return False
        sessions = self._busy()
        if sessions:
            self._advance(sessions)
        return True

    @property
    def n_sessions(self) -> int:
        return len(self._sessions)

    @property
    def leads(self) -> list[str]:
        """Those that accept this drafter."""
        return sorted(self._leads - self._refusals.keys())

    def _busy(self) -> list[DraftSession]:
        wants = self._drafter.wants
        return [s for s in self._sessions.values() if self._failures.get(s.id, 0) < MAX_FAILURES and wants(s)]

    def _advance(self, sessions: list[DraftSession]) -> None:
        try:
            grown = self._drafter.advance(sessions)
        except BackendError as error:
            logger.warning("drafting failed: %s", error.message)
            for session in sessions:
                self._failures[session.id] = self._failures.get(session.id, 0) + 1
            return
        now = self._clock()
        due = now - self._published_at >= PUBLISH_S
        for session in grown:
            self.n_drafted += 1
            if due or session.unpublished == session.n_ahead or not self._drafter.wants(session):
                self._bus.send(session.lead, session.take_draft(self._own.id, self._drafter.td_us))
                self._published_at = now
        self._tell_td()

    def _tell_td(self) -> None:
        td_us = self._drafter.td_us
        if abs(td_us - self._told_td_us) > 0.2 * self._told_td_us:
            self._told_td_us = td_us
            self._bus.describe(replace(self._own, td_us=td_us))

    # -- arrivals

    def _take_in(self, wait: bool) -> bool:
        try:
            arrival = self._arrived.get(block=wait)
            while arrival is not None:
                self._handle(arrival)
                arrival = self._arrived.get_nowait()
        except Empty:
            return True
        return False

    def _handle(self, arrival: Message | tuple[Presence, ...]) -> None:
        match arrival:
            case Open():
                self._open(arrival)
            case Commit():
                self._commit(arrival)
            case Close():
                session = self._sessions.get(arrival.session)
                if session is not None and session.epoch <= arrival.epoch:
                    self._close(session, keep=arrival.keep)
            case Refuse():
                self._refusals[arrival.lead] = arrival.reason
                logger.warning("lead %s refuses this drafter: %s", arrival.lead, arrival.reason)
            case tuple():
                self._meet({presence.id for presence in arrival})
            case _:
                pass  # messages for leads

    def _open(self, message: Open) -> None:
        if message.lead in self._refusals or not message.tokens:
            return
        self._wanted.pop(message.session, None)
        session = self._sessions.get(message.session)
        if session is None:
            self._sessions[message.session] = DraftSession(message)
        elif message.epoch >= session.epoch:
            session.reopen(message)

    def _commit(self, message: Commit) -> None:
        session = self._sessions.get(message.session)
        if session is None or session.epoch != message.epoch:
            return
        if not session.commit(message):
            self._want(session)

    def _want(self, session: DraftSession) -> None:
        """Ask for Open again, not more often than an answer takes."""
        now = self._clock()
        if now - self._wanted.get(session.id, -WANT_S) >= WANT_S:
            self._wanted[session.id] = now
            self._bus.send(session.lead, Want(self._own.id, session.id, session.epoch))

    def _meet(self, present: set[str]) -> None:
        for lead in present - self._leads:
            logger.info("lead %s joined", lead)
        for lead in self._leads - present:
            logger.info("lead %s left", lead)
            self._refusals.pop(lead, None)
            for session in [s for s in self._sessions.values() if s.lead == lead]:
                self._close(session, keep=True)
        self._leads = present

    def _close(self, session: DraftSession, *, keep: bool) -> None:
        del self._sessions[session.id]
        self._failures.pop(session.id, None)
        self._wanted.pop(session.id, None)
        self._drafter.close(session, keep=keep)
