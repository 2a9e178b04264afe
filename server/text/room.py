"""Limit the size of a prompt and the time to render it."""

from __future__ import annotations

from dataclasses import dataclass

from server.errors import ContextOverflowError

RENDER_S = 10.0
"""Seconds allowed for one rendering: 100 times what 1000 messages take on a busy machine.

A template that takes longer most likely never ends.
"""


@dataclass(frozen=True, slots=True)
class Room:
    """Limits on the size of a prompt.

    Call the check methods before work is spent on a prompt. They raise ContextOverflowError for the request's
    field `param`.
    """

    n_ctx: int  # length of the context in tokens; a prompt must have fewer
    longest: int  # bytes of the vocabulary's longest token
    render_s: float = RENDER_S  # maximum seconds of one rendering

    def check_tokens(self, n_tokens: int, param: str = "messages", *, estimated: bool = False) -> None:
        """Raise if a prompt has too many tokens. estimated: True if n_tokens is only a lower bound."""
        if n_tokens >= self.n_ctx:
            raise ContextOverflowError(n_tokens, self.n_ctx, param=param, estimated=estimated)

    def check_bytes(self, n_bytes: int, param: str = "messages") -> None:
        """Raise if a text of n_bytes bytes needs too many tokens even if every token has the maximum length.

        The text's number of characters may be passed instead, because it is never larger.
        """
        self.check_tokens(n_bytes // self.longest, param, estimated=True)


ANY = Room(1 << 62, 1)
