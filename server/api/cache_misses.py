"""Remembers the prompts of earlier replies, and says where a later one parts from them."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from server.cache.prefix import common_prefix

MOST_PROMPT_BYTES = 32 << 20  # of all prompts, 8 million tokens: 300 first prompts of Claude Code
BYTES_A_TOKEN = 4


@dataclass(frozen=True, slots=True)
class KnownPrompt:
    """The prompt of one reply."""

    tokens: array[int]
    parts: Mapping[str, str] = field(default_factory=dict[str, str])  # what it was made of, such as tools


@dataclass(frozen=True, slots=True)
class Divergence:
    """The place where a prompt parts from an earlier one."""

    n_common: int  # tokens that both begin with
    n_missed: int  # further tokens of the earlier one
    changed: str  # the first part that differs, empty if none of those that are known does


class PromptMemory:
    """A bounded memory of prompts, for the event loop: drops the oldest."""

    def __init__(self, most_bytes: int = MOST_PROMPT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._held: OrderedDict[tuple[str, str], KnownPrompt] = OrderedDict()
        self._n_bytes = 0

    def remember(self, salt: str, id: str, tokens: Sequence[int], parts: Mapping[str, str]) -> None:
        """Keep the prompt of a reply."""
        self._held[salt, id] = KnownPrompt(array("I", tokens), parts)
        self._n_bytes += len(tokens) * BYTES_A_TOKEN
        while self._n_bytes > self._most_bytes:
            _, oldest = self._held.popitem(last=False)
            self._n_bytes -= len(oldest.tokens) * BYTES_A_TOKEN

    def divergence(
        self, salt: str, id: str, tokens: Sequence[int], parts: Mapping[str, str]
    ) -> Divergence | None:
        """Return where a prompt parts from that of an earlier reply; None if it is not known.

        Args:
            id: of the earlier reply.
            tokens: the prompt.
            parts: what the prompt is made of, in the order of the prompt.
        """
        known = self._held.get((salt, id))
        if known is None:
            return None
        n_common = common_prefix(known.tokens.tolist(), list(tokens))
        changed = next((name for name, part in parts.items() if known.parts.get(name) != part), "")
        return Divergence(n_common, len(known.tokens) - n_common, changed)
