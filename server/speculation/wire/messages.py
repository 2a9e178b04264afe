"""The wire between leads and drafters: frozen messages, their bytes, and the chain hash that keys drafts.

Layout, little endian: version u8, tag u8, then the fields of the message in order. Token lists and strings
are preceded by their length as u32. Decoding is strict: wrong version, unknown tag, missing or trailing
bytes, a list beyond its bound, or text that is not printable raise WireError. Only Refuse keeps its bytes and
its version number for ever, so that a drafter of another version can read why it is refused.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from server.sampling.params import SamplingParams

VERSION = 3
REFUSE_VERSION = 2
MAX_TOKENS = 1 << 20  # tokens of one Open or Commit
MAX_NODES = 256  # nodes of one Draft
MAX_TEXT = 512  # bytes of one string: a name of 128 characters, or a reason
ROOT = -1  # parent of a draft's first nodes: the token just before `base`

_MASK = (1 << 64) - 1
_MULTIPLIER = 0x9E3779B97F4A7C15


class WireError(ValueError):
    """Bytes that are not a message of this version."""


@dataclass(frozen=True, slots=True)
class Open:
    """lead → drafter: a session begins, or is told anew; tokens are all committed so far, chain is the chain
    hash after them. sampling is what the drafter may mirror, its seed that of the shared Gumbel noise, which
    tokens[i] has at position i + n_dropped: so many tokens were dropped when the context was full. max_ahead
    bounds how far past the committed tokens to draft. Sessions with different salts must not share a KV
    cache: the drafter's pace would tell one client what another one said.
    """

    lead: str
    session: int
    chain: int
    max_ahead: int
    sampling: SamplingParams
    tokens: tuple[int, ...]
    salt: str = ""
    n_dropped: int = 0


@dataclass(frozen=True, slots=True)
class Commit:
    """lead → drafter: `tokens` follow the first `base` committed ones; chain is the hash after them. Without
    tokens it says that the session is still open."""

    session: int
    base: int
    chain: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Close:
    """lead → drafter: the session ended, or this lead does not know it. keep: the conversation is likely to
    go on, so keep its KV cache."""

    lead: str
    session: int
    keep: bool


@dataclass(frozen=True, slots=True)
class Refuse:
    """lead → drafter: this lead will not use the drafter, and why."""

    lead: str
    reason: str


@dataclass(frozen=True, slots=True)
class Draft:
    """drafter → lead: a scored tree of guesses for what follows position base - 1.

    chain is the chain hash over everything before `base`, guessed tokens included: a draft may continue
    an earlier one. parents[i] < i is an index into tokens or ROOT; confidences[i] in 0…255 is the drafter's
    probability of token i given its parent, times 255; td_us its time per token in microseconds.
    """

    drafter: str
    session: int
    base: int
    chain: int
    td_us: int
    parents: tuple[int, ...]
    tokens: tuple[int, ...]
    confidences: bytes


@dataclass(frozen=True, slots=True)
class Want:
    """drafter → lead: is this session still open? n_known: committed tokens that the drafter has. The lead
    answers with Close, with an empty Commit where these are all, else with Open."""

    drafter: str
    session: int
    n_known: int


Message: TypeAlias = Open | Commit | Close | Refuse | Draft | Want


def chain_start(tokens: Sequence[int]) -> int:
    """The chain hash a session opens with. Only the lead computes it, drafters learn it from Open, and it is
    compared within one session only: the length and the last tokens are enough."""
    chain = len(tokens)
    for token in tokens[-32:]:
        chain = chain_next(chain, token)
    return chain


def chain_next(chain: int, token: int) -> int:
    """The 64-bit chain hash after one more token (a bijective mix for each token)."""
    mixed = ((chain ^ (token + 1)) * _MULTIPLIER) & _MASK
    return mixed ^ (mixed >> 29)


def encode(message: Message) -> bytes:
    """The bytes of a message."""
    tag, body = _ENCODERS[type(message)](message)
    return _HEAD.pack(REFUSE_VERSION if tag == _REFUSE else VERSION, tag) + body


def decode(data: bytes) -> Message:
    """The message in these bytes. Raises WireError for anything else than exactly one message."""
    reader = _Reader(data)
    try:
        version, tag = reader.unpack(_HEAD)
        if version != (REFUSE_VERSION if tag == _REFUSE else VERSION):
            raise WireError(f"wire version {version}, this is {VERSION}")
        if tag not in _DECODERS:
            raise WireError(f"unknown message tag {tag}")
        message = _DECODERS[tag](reader)
    except UnicodeDecodeError as error:
        raise WireError("text is not UTF-8") from error
    reader.finish()
    return message


_HEAD = struct.Struct("<BB")
_LENGTH = struct.Struct("<I")
_OPEN = struct.Struct("<QQIIdiddQ")  # session chain max_ahead n_dropped | temperature top_k top_p min_p seed
_COMMIT = struct.Struct("<QIQ")  # session base chain
_CLOSE = struct.Struct("<Q?")  # session keep
_DRAFT = struct.Struct("<QIQI")  # session base chain td_us
_WANT = struct.Struct("<QI")  # session n_known
_REFUSE = 4


class _Reader:
    """Takes fields off the front of a buffer."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        return layout.unpack(self._take(layout.size))

    def text(self) -> str:
        text = self.blob(MAX_TEXT).decode()
        if not text.isprintable():
            raise WireError("text that would garble a log")
        return text

    def blob(self, bound: int) -> bytes:
        return self._take(self._length(bound))

    def ints(self, bound: int) -> tuple[int, ...]:
        values = array("i", self._take(4 * self._length(bound)))
        if sys.byteorder == "big":
            values.byteswap()
        return tuple(values)

    def finish(self) -> None:
        if self._at != len(self._data):
            raise WireError("trailing bytes")

    def _length(self, bound: int) -> int:
        (n,) = self.unpack(_LENGTH)
        if n > bound:
            raise WireError(f"{n} items, at most {bound} allowed")
        return n

    def _take(self, n: int) -> bytes:
        piece = self._data[self._at : self._at + n]
        if len(piece) != n:
            raise WireError("message too short")
        self._at += n
        return piece


def _blob(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def _text(text: str) -> bytes:
    return _blob(text.encode())


def _ints(values: Sequence[int]) -> bytes:
    packed = array("i", values)
    if sys.byteorder == "big":
        packed.byteswap()
    return _LENGTH.pack(len(values)) + packed.tobytes()


def _encode_open(m: Open) -> tuple[int, bytes]:
    s = m.sampling
    head = (m.session, m.chain, m.max_ahead, m.n_dropped)
    packed = _OPEN.pack(*head, s.temperature, s.top_k, s.top_p, s.min_p, s.seed)
    return 1, packed + _text(m.lead) + _ints(m.tokens) + _text(m.salt)


def _decode_open(r: _Reader) -> Open:
    session, chain, max_ahead, n_dropped, *sampling = r.unpack(_OPEN)
    lead, tokens = r.text(), r.ints(MAX_TOKENS)
    return Open(lead, session, chain, max_ahead, SamplingParams(*sampling), tokens, r.text(), n_dropped)


def _encode_commit(m: Commit) -> tuple[int, bytes]:
    return 2, _COMMIT.pack(m.session, m.base, m.chain) + _ints(m.tokens)


def _decode_commit(r: _Reader) -> Commit:
    session, base, chain = r.unpack(_COMMIT)
    return Commit(session, base, chain, r.ints(MAX_TOKENS))


def _encode_close(m: Close) -> tuple[int, bytes]:
    return 3, _CLOSE.pack(m.session, m.keep) + _text(m.lead)


def _decode_close(r: _Reader) -> Close:
    session, keep = r.unpack(_CLOSE)
    return Close(r.text(), session, keep)


def _encode_refuse(m: Refuse) -> tuple[int, bytes]:
    return _REFUSE, _text(m.lead) + _text(m.reason)


def _decode_refuse(r: _Reader) -> Refuse:
    return Refuse(r.text(), r.text())


def _encode_draft(m: Draft) -> tuple[int, bytes]:
    head = _DRAFT.pack(m.session, m.base, m.chain, m.td_us)
    return 5, head + _text(m.drafter) + _ints(m.parents) + _ints(m.tokens) + _blob(m.confidences)


def _decode_draft(r: _Reader) -> Draft:
    session, base, chain, td_us = r.unpack(_DRAFT)
    drafter, parents, tokens = r.text(), r.ints(MAX_NODES), r.ints(MAX_NODES)
    confidences = r.blob(MAX_NODES)
    if not len(parents) == len(tokens) == len(confidences):
        raise WireError("parents, tokens and confidences differ in length")
    if any(not ROOT <= parent < i for i, parent in enumerate(parents)):
        raise WireError("a parent does not come before its child")
    return Draft(drafter, session, base, chain, td_us, parents, tokens, confidences)


def _encode_want(m: Want) -> tuple[int, bytes]:
    return 6, _WANT.pack(m.session, m.n_known) + _text(m.drafter)


def _decode_want(r: _Reader) -> Want:
    session, n_known = r.unpack(_WANT)
    return Want(r.text(), session, n_known)


_ENCODERS: dict[type, Callable[[Any], tuple[int, bytes]]] = {
    Open: _encode_open,
    Commit: _encode_commit,
    Close: _encode_close,
    Refuse: _encode_refuse,
    Draft: _encode_draft,
    Want: _encode_want,
}
_DECODERS: dict[int, Callable[[_Reader], Message]] = {
    1: _decode_open,
    2: _decode_commit,
    3: _decode_close,
    _REFUSE: _decode_refuse,
    5: _decode_draft,
    6: _decode_want,
}
