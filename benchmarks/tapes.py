"""What a lead and a drafter say to each other while replies are made: each message with its time, recorded
under the virtual clock of clocked.py, so that a machine of any speed can be had and nothing is noise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.capacity import TOKEN_BYTES, Traffic
from benchmarks.clocked import ClockedDrafter, run
from benchmarks.temperature import Text
from server.llama.backend import Backend
from server.speculation.wire.messages import Close, Draft, Message, Open, Refuse, Want, encode

PER_TOKEN = ("Commit", "Draft")  # kinds of which there are the more, the longer a reply is


@dataclass(frozen=True, slots=True)
class Said:
    """at_s: since the first message."""

    at_s: float
    to_lead: bool
    message: Message


@dataclass(frozen=True, slots=True)
class Tape:
    """Of n_replies with n_tokens in all, which took `seconds`. rate: tokens a second of a lead whose
    places are always taken, which on the tape they are not: the last of some replies at once ends alone."""

    said: Sequence[Said]
    n_replies: int
    n_tokens: int
    seconds: float
    rate: float

    @property
    def counts(self) -> Counter[str]:
        """Messages by kind."""
        return Counter(kind_of(one.message) for one in self.said)

    @property
    def sizes(self) -> Counter[str]:
        """Bytes of messages by kind, as encoded: without what Redis adds."""
        sizes = Counter[str]()
        for one in self.said:
            sizes[kind_of(one.message)] += len(encode(one.message))
        return sizes

    @property
    def traffic(self) -> Traffic:
        counts, sizes = self.counts, self.sizes
        n_told = sum(len(one.message.tokens) for one in self.said if isinstance(one.message, Open))
        often, often_bytes = (sum(of[kind] for kind in PER_TOKEN) for of in (counts, sizes))
        once, once_bytes = counts.total() - often, sizes.total() - often_bytes - TOKEN_BYTES * n_told
        return Traffic(
            self.rate,
            often / self.n_tokens,
            often_bytes / self.n_tokens,
            once / self.n_replies,
            once_bytes / self.n_replies,
        )


def kind_of(message: Message) -> str:
    return type(message).__name__


class TapedDrafter(ClockedDrafter):
    """Writes down what is said in both directions, and when it was sent."""

    said: list[Said] | None = None

    def send(self, to: str, message: Message) -> None:
        self.said = self.said or []
        to_lead = to != self.presence.id
        at_us = self.world.now_us + to_lead * self._turn_us
        self.said.append(Said(at_us / 1e6, to_lead, message))
        super().send(to, message)


def record(draft: Backend, known: Sequence[Text], r: float, tt_us: int, at_once: int) -> Tape:
    """One lead and one drafter that makes r guesses per plain step of tt_us; at_once replies at a time."""
    drafter = TapedDrafter(draft, r, tt_us=tt_us)
    found = run(drafter, known, at_once)
    said = sorted(drafter.said or (), key=lambda one: one.at_s)
    began = said[0].at_s
    n_tokens = sum(len(text.tokens) - text.n_prompt for text in known)
    moved = [replace(one, at_s=one.at_s - began) for one in said]
    rate = at_once * found.speedup / (tt_us / 1e6)
    return Tape(moved, len(known), n_tokens, drafter.world.clock() - began, rate)


def between(message: Message, lead: str, drafter: str) -> Message:
    """The message as these two would say it."""
    if isinstance(message, Open | Close | Refuse):
        return replace(message, lead=lead)
    if isinstance(message, Draft | Want):
        return replace(message, drafter=drafter)
    return message
