"""Remember the prompts of earlier replies, to find where a later prompt first differs from them."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from server.cache.prefix import common_prefix

MOST_PROMPT_BYTES = 32 << 20
"""Maximum bytes of all prompts: 8 million tokens, or 300 first prompts of Claude Code."""
BYTES_A_TOKEN = 4


@dataclass(frozen=True, slots=True)
class KnownPrompt:
    """The prompt of one reply."""

    tokens: array[int]
    # parts of the prompt by name, such as tools
    parts: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Divergence:
    """The point at which a prompt differs from an earlier prompt."""

    n_common: int  # number of equal tokens at the beginning
    n_missed: int  # tokens of the earlier prompt after the equal ones
    changed: str  # name of the first part that differs; empty if none does


class PromptMemory:
    """A bounded memory of prompts that drops the oldest. Use on the event loop only."""

    def __init__(self, most_bytes: int = MOST_PROMPT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._held: OrderedDict[tuple[str, str], KnownPrompt] = OrderedDict()
        self._n_bytes = 0

    def remember(self, salt: str, id: str, tokens: Sequence[int], parts: Mapping[str, str]) -> None:
        """Keep the prompt of reply `id`, as tokens and as parts by name, for divergence()."""
        self._held[salt, id] = KnownPrompt(array("I", tokens), parts)
        self._n_bytes += len(tokens) * BYTES_A_TOKEN
        while self._n_bytes > self._most_bytes:
            _, oldest = self._held.popitem(last=False)
            self._n_bytes -= len(oldest.tokens) * BYTES_A_TOKEN

    def divergence(
        self, salt: str, id: str, tokens: Sequence[int], parts: Mapping[str, str]
    ) -> Divergence | None:
        """Return where a prompt differs from an earlier reply's prompt; None if that prompt is not known.

        Args:
            salt: The salt of both requests.
            id: The id of the earlier reply.
            tokens: The prompt.
            parts: The parts that the prompt is made of, by name and in order.
        """
        known = self._held.get((salt, id))
        if known is None:
            return None
        n_common = common_prefix(known.tokens.tolist(), list(tokens))
        changed = next((name for name, part in parts.items() if known.parts.get(name) != part), "")
        return Divergence(n_common, len(known.tokens) - n_common, changed)
