"""Who is on the bus: what each process says about itself, and whether two vocabularies fit."""

from __future__ import annotations

import platform
import zlib
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from server.llama.backend import Vocabulary

Role: TypeAlias = Literal["lead", "drafter"]
BLOCK = 1024  # token ids per checksum, so that a refusal can say where the vocabularies part
MAX_SIZE_DIFFERENCE = 128  # padding at the end of a vocabulary that llama.cpp, too, tolerates


@dataclass(frozen=True, slots=True)
class VocabularyCard:
    """What must agree for a drafter's ids to mean the lead's tokens. blocks: CRC-32 per BLOCK of pieces."""

    size: int
    bos: int | None
    eos: int | None
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Presence:
    """One process on the bus. capacity: sessions at once; td_us: measured time per drafted token (0: not
    measured yet); host: the machine it runs on."""

    id: str
    role: Role
    model: str
    version: str
    vocabulary: VocabularyCard
    capacity: int
    td_us: int = 0
    host: str = field(default_factory=platform.node)


def vocabulary_card(vocabulary: Vocabulary) -> VocabularyCard:
    """Describe a vocabulary. Reads every piece once."""
    blocks: list[int] = []
    for start in range(0, vocabulary.size, BLOCK):
        crc = 0
        for token in range(start, min(start + BLOCK, vocabulary.size)):
            crc = zlib.crc32(vocabulary.piece(token, special=True) + b"\0", crc)
        blocks.append(crc)
    return VocabularyCard(vocabulary.size, vocabulary.bos, vocabulary.eos, tuple(blocks))


def misfit(lead: VocabularyCard, drafter: VocabularyCard) -> str | None:
    """Why the drafter's vocabulary does not fit the lead's, or None when it does. Pure."""
    if abs(lead.size - drafter.size) > MAX_SIZE_DIFFERENCE:
        return f"vocabulary sizes differ: lead {lead.size}, drafter {drafter.size}"
    for name, ours, theirs in (("BOS", lead.bos, drafter.bos), ("EOS", lead.eos, drafter.eos)):
        if ours != theirs:
            return f"{name} tokens differ: lead {ours}, drafter {theirs}"
    whole = len(lead.blocks) if lead.size == drafter.size else min(lead.size, drafter.size) // BLOCK
    for i in range(whole):
        if lead.blocks[i] != drafter.blocks[i]:
            return f"token texts differ between ids {i * BLOCK} and {(i + 1) * BLOCK - 1}"
    return None
