"""Describe the processes on the bus, and check whether two vocabularies fit."""

from __future__ import annotations

import functools
import os
import platform
import re
import secrets
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, Field

from server.llama.backend import RowsCard, Vocabulary
from server.speculation.wire.messages import MAX_DRAFTER_NAME, MAX_ROWS_BYTES, WIRE_VERSION

Role: TypeAlias = Literal["lead", "drafter"]
CHECKSUM_TOKENS = 1024  # token ids per checksum, so that a refusal can say where the vocabularies part
MAX_SIZE_DIFFERENCE = 128  # tokens of padding at a vocabulary's end: llama.cpp has the same limit
MAX_VOCABULARY = 1 << 22  # tokens of a vocabulary: 16 times as many as the largest ones have today
MAX_BLOCKS = MAX_VOCABULARY // CHECKSUM_TOKENS  # checksums of one vocabulary
MAX_CAPACITY = 1 << 16  # sessions: 256 times as many as drafters offer
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # new at each start of the machine


def printable(text: str) -> str:
    """Return the first MAX_DRAFTER_NAME characters, with "?" for those that could forge a log line."""
    return "".join(c if c.isprintable() else "?" for c in text[:MAX_DRAFTER_NAME])


def bounded_rows(card: RowsCard) -> RowsCard:
    """Return the card. Raises ValueError if its rows are too large for a message, or its layers too many."""
    if not 0 < card.width <= MAX_ROWS_BYTES or len(card.layers) > MAX_BLOCKS:
        raise ValueError("no model has such rows")
    return card


@functools.cache
def kernel_id() -> str:
    """Return an id of the kernel: equal for all processes that share its cores, in any container.

    Only Linux has such an id; elsewhere it is the machine's name.
    """
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return platform.node()


_Name: TypeAlias = Annotated[str, AfterValidator(printable)]
_Token: TypeAlias = Annotated[int, Field(ge=0, lt=MAX_VOCABULARY)]
_Rows: TypeAlias = Annotated[RowsCard, AfterValidator(bounded_rows)]
_U32: TypeAlias = Annotated[int, Field(ge=0, lt=1 << 32)]


@dataclass(frozen=True, slots=True)
class VocabularyCard:
    """Description of a vocabulary: if two are equal, an id means the same token in both vocabularies."""

    size: Annotated[int, Field(ge=0, le=MAX_VOCABULARY)]
    bos: _Token | None
    eos: _Token | None
    # CRC-32 of the pieces of each CHECKSUM_TOKENS tokens
    blocks: Annotated[tuple[_U32, ...], Field(max_length=MAX_BLOCKS)]


@dataclass(frozen=True, slots=True)
class Presence:
    """A description of one process on the bus.

    The limits of its fields are checked when a description arrives (roster.read_card), not when it is made.
    """

    id: Annotated[str, Field(pattern=r"^\S+$"), AfterValidator(printable)]
    role: Role
    model: _Name
    version: _Name
    vocabulary: VocabularyCard
    capacity: Annotated[int, Field(ge=0, le=MAX_CAPACITY)]  # sessions at once
    td_us: _U32 = 0  # measured microseconds per drafted token; 0: not measured yet
    host: _Name = field(default_factory=platform.node)  # machine that it runs on
    wire: Annotated[int, Field(ge=0, lt=1 << 8)] = WIRE_VERSION  # version of the messages that it speaks
    kernel: _Name = field(default_factory=kernel_id)  # its kernel_id()
    kind: _Name = "model"  # of a drafter: model, head, engine, browser, lookup or replay
    rows: _Rows | None = None  # hidden rows that the lead can send, or the drafter's head needs


# Characters of an id that come from the name; process id and random bytes follow
MAX_HOST = MAX_DRAFTER_NAME // 2
REMEDY = "a model of the lead's family would fit, and with --translate and the lead's GGUF file any does"
ID_BYTES = 4  # random: containers share names and process ids; 1,000 of them have two equal ids once in 8,600
_PROCESS = re.compile(rf"-\d+-[0-9a-f]{{{2 * ID_BYTES}}}$")


def unique_id(name: str) -> str:
    """Return an id for a process of this name, which no other process on the bus has."""
    spelled = "-".join(printable(name)[:MAX_HOST].split())
    return f"{spelled}-{os.getpid()}-{secrets.token_hex(ID_BYTES)}"


def names(drafters: Sequence[Presence]) -> list[str]:
    """Return a display name for each drafter: its given name, else its machine's name.

    A drafter without a given name on this machine is "this machine". Of several drafters named "laptop", the
    second is called "laptop 2", and so on.
    """
    found, seen = list[str](), Counter[str]()
    for drafter in drafters:
        name = _PROCESS.sub("", drafter.id)
        if name == drafter.host == platform.node():
            name = "this machine"
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name} {seen[name]}")
    return found


def vocabulary_card(vocabulary: Vocabulary) -> VocabularyCard:
    """Describe a vocabulary. Reads every piece once."""
    blocks: list[int] = []
    for start in range(0, vocabulary.size, CHECKSUM_TOKENS):
        crc = 0
        for token in range(start, min(start + CHECKSUM_TOKENS, vocabulary.size)):
            crc = zlib.crc32(vocabulary.piece(token, special=True) + b"\0", crc)
        blocks.append(crc)
    return VocabularyCard(vocabulary.size, vocabulary.bos, vocabulary.eos, tuple(blocks))


def refusal(lead: Presence, drafter: Presence) -> str | None:
    """Return why the lead cannot use the drafter, None if it can. Pure."""
    if lead.wire != drafter.wire:
        return (
            f"it speaks version {drafter.wire} of the wire, this lead version {lead.wire}: "
            f"install duo {lead.version} on both sides"
        )
    reason = mismatch(lead.vocabulary, drafter.vocabulary)
    if reason:
        return f"{reason}; {REMEDY}"
    return drafter.rows and rows_mismatch(lead.rows, drafter.rows)


def rows_mismatch(given: RowsCard | None, read: RowsCard) -> str | None:
    """Return why a head that reads the rows `read` cannot draft for a lead that sends `given`, else None.

    Pure.
    """
    if given is None:
        return "its head needs the target's hidden rows, and this lead has none to send"
    if read.width != given.width:
        return f"its head is for targets of width {read.width}, and this one has {given.width}"
    if missing := sorted({*read.layers} - {*given.layers}):
        return f"its head reads layer {missing[-1]}, and this lead can send {len(given.layers)} layers"
    return None


def mismatch(lead: VocabularyCard, drafter: VocabularyCard) -> str | None:
    """Return why the drafter's vocabulary does not fit the lead's, None if it does. Pure."""
    if lead == drafter:
        return None
    if abs(lead.size - drafter.size) > MAX_SIZE_DIFFERENCE:
        return f"vocabulary sizes differ: lead {lead.size}, drafter {drafter.size}"
    for name, ours, theirs in (("BOS", lead.bos, drafter.bos), ("EOS", lead.eos, drafter.eos)):
        if ours != theirs:
            return f"{name} tokens differ: lead {ours}, drafter {theirs}"
    if len(drafter.blocks) != -(-drafter.size // CHECKSUM_TOKENS):
        return f"{len(drafter.blocks)} checksums for {drafter.size} tokens: another version of duo made them"
    whole = len(lead.blocks) if lead.size == drafter.size else min(lead.size, drafter.size) // CHECKSUM_TOKENS
    for i in range(whole):
        if lead.blocks[i] != drafter.blocks[i]:
            return f"token texts differ between ids {i * CHECKSUM_TOKENS} and {(i + 1) * CHECKSUM_TOKENS - 1}"
    return None
