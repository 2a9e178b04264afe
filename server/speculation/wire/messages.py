"""Messages between leads and drafters, their bytes, and the hash (chain) of the text that a draft continues.

Layout, little endian: version u8, tag u8, then the fields of the message in order. Token lists and strings
are preceded by their length as u32. Decoding is strict: wrong version, unknown tag, missing or trailing
bytes, a list beyond its limit, or text that is not printable raise WireError. Only Refuse keeps its bytes and
its version number forever, so that a drafter of another version can read why it is refused.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeAlias

from server.sampling.params import SamplingParams

WIRE_VERSION = 4
REFUSE_VERSION = 2
MAX_MESSAGE_TOKENS = 1 << 20  # tokens of one Open or Commit
# Maximum bytes of one message, and roughly of one pipeline: twice MAX_MESSAGE_TOKENS of four bytes each
MAX_BYTES = 2 * 4 * MAX_MESSAGE_TOKENS
MAX_NODES = 256  # nodes of one Draft
MAX_ROWS_BYTES = MAX_BYTES // 8  # of one Rows: 42 rows of three layers of width 4096
MAX_DRAFTER_NAME = 128  # characters of a name, which fits one line of a log
MAX_TEXT = 4 * MAX_DRAFTER_NAME  # bytes of one string: UTF-8 has at most four for a character
ROOT = -1  # parent of a draft's first nodes: the token just before `base`

_MASK = (1 << 64) - 1
_MULTIPLIER = 0x9E3779B97F4A7C15


class WireError(ValueError):
    """Bytes that are not a message of this version."""


@dataclass(frozen=True, slots=True)
class Open:
    """lead → drafter: a session begins, or is sent again.

    Sessions with different salts must not share a KV cache: the drafter's pace would tell one client what
    another one said.
    """

    lead: str
    session: int
    chain: int  # chain hash after `tokens`
    max_ahead: int  # maximum tokens to draft past the committed ones
    sampling: SamplingParams  # what the drafter may mirror; its seed is that of the shared Gumbel noise
    tokens: tuple[int, ...]  # all committed tokens so far; tokens[i] has the noise of position i + n_dropped
    salt: str = ""
    n_dropped: int = 0  # tokens dropped since the context was full


def hashed_salt(salt: str) -> str:
    """Return the hash of a salt. Drafters get it instead of the salt, which may be a secret."""
    return hashlib.blake2b(salt.encode(), digest_size=16).hexdigest() if salt else ""


@dataclass(frozen=True, slots=True)
class Commit:
    """lead → drafter: `tokens` follow the first `base` committed ones.

    Without tokens it confirms that the session is still open.
    """

    session: int
    base: int
    chain: int  # chain hash after `tokens`
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """lead → drafter: the target's hidden rows (states) of committed tokens, for a drafter with a head."""

    session: int
    base: int  # position of the first row's token in the text
    width: int  # values per row
    data: bytes  # the rows, one after the other, as float16


@dataclass(frozen=True, slots=True)
class Close:
    """lead → drafter: the session ended, or this lead does not know it."""

    lead: str
    session: int
    keep: bool  # keep the KV cache, since the conversation may continue


@dataclass(frozen=True, slots=True)
class Refuse:
    """lead → drafter: this lead does not use the drafter, and why."""

    lead: str
    reason: str


@dataclass(frozen=True, slots=True)
class Draft:
    """drafter → lead: a scored tree of guesses for what follows the first `base` tokens."""

    drafter: str
    session: int
    base: int
    # chain hash over all before `base`, guessed tokens included: a draft may continue an earlier one
    chain: int
    td_us: int  # microseconds per token
    parents: tuple[int, ...]  # by token: index of its parent, an earlier token or ROOT
    tokens: tuple[int, ...]
    confidences: bytes  # by token: the drafter's probability given its parent, times 255


@dataclass(frozen=True, slots=True)
class Want:
    """drafter → lead: ask whether this session is still open.

    If it is not, the lead answers with Close. If it is, the lead answers with an empty Commit if the drafter
    has all committed tokens, and with Open if tokens are missing. If it sends no answer, the missing tokens
    are on the way.
    """

    drafter: str
    session: int
    n_known: int  # committed tokens that the drafter has


Message: TypeAlias = Open | Commit | Close | Refuse | Draft | Want | Rows


def chain_start(tokens: Sequence[int]) -> int:
    """Return the chain hash of a session that begins with these tokens.

    It hashes only their number and the last ones. That suffices, since hashes are compared within one session
    only. Drafters do not compute it: an Open message contains it.
    """
    chain = len(tokens)
    for token in tokens[-32:]:
        chain = chain_next(chain, token)
    return chain


def chain_next(chain: int, token: int) -> int:
    """Return the 64-bit chain hash after one more token (a bijective mix per token)."""
    mixed = ((chain ^ (token + 1)) * _MULTIPLIER) & _MASK
    return mixed ^ (mixed >> 29)


def encode(message: Message) -> bytes:
    """Return the bytes of a message."""
    tag = _TAGS[type(message)]
    version = REFUSE_VERSION if tag == _REFUSE else WIRE_VERSION
    return _HEAD.pack(version, tag) + _LAYOUTS[tag].pack(message)


def decode(data: bytes) -> Message:
    """Return the message in these bytes. Raises WireError unless they are exactly one message."""
    reader = _Reader(data)
    try:
        version, tag = reader.unpack(_HEAD)
        if version != (REFUSE_VERSION if tag == _REFUSE else WIRE_VERSION):
            raise WireError(f"wire version {version}, this is {WIRE_VERSION}")
        if tag not in _LAYOUTS:
            raise WireError(f"unknown message tag {tag}")
        message = _LAYOUTS[tag].read(reader)
    except UnicodeDecodeError as error:
        raise WireError("text is not UTF-8") from error
    reader.finish()
    return message


_HEAD = struct.Struct("<BB")
_LENGTH = struct.Struct("<I")


class _Reader:
    """Reads fields from the front of a buffer."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        return layout.unpack(self._take(layout.size))

    def text(self) -> str:
        text = self._take(self._read_length(MAX_TEXT)).decode()
        if not text.isprintable():
            raise WireError("text that would garble a log")
        return text

    def confidences(self) -> bytes:
        return self._take(self._read_length(MAX_NODES))

    def rows(self) -> bytes:
        return self._take(self._read_length(MAX_ROWS_BYTES))

    def tokens(self, bound: int = MAX_MESSAGE_TOKENS) -> tuple[int, ...]:
        n = self._read_length(bound)
        return struct.unpack(f"<{n}i", self._take(4 * n))

    def nodes(self) -> tuple[int, ...]:
        return self.tokens(MAX_NODES)

    def finish(self) -> None:
        if self._at != len(self._data):
            raise WireError("trailing bytes")

    def _read_length(self, bound: int) -> int:
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


class _Layout:
    """Layout of a message's bytes: numbers in the struct format `packed`, then lists and strings."""

    def __init__(
        self, make: Callable[..., Message], packed: str, names: str, **lists: Callable[[_Reader], Any]
    ) -> None:
        self._make, self._packed, self._lists = make, struct.Struct(packed), lists
        self._get = [attrgetter(name) for name in names.split()]
        self._names = [name.rpartition(".")[2] for name in names.split()]

    def pack(self, message: Message) -> bytes:
        numbers = self._packed.pack(*[get(message) for get in self._get])
        return numbers + b"".join(_packed_list(getattr(message, name)) for name in self._lists)

    def read(self, reader: _Reader) -> Message:
        numbers = dict(zip(self._names, reader.unpack(self._packed), strict=True))
        return self._make(**numbers, **{name: read(reader) for name, read in self._lists.items()})


def _packed_list(value: str | bytes | Sequence[int]) -> bytes:
    items = value.encode() if isinstance(value, str) else value
    data = items if isinstance(items, bytes) else struct.pack(f"<{len(items)}i", *items)
    return _LENGTH.pack(len(items)) + data


def _make_open(temperature: float, top_k: int, top_p: float, min_p: float, seed: int, **fields: Any) -> Open:
    return Open(sampling=SamplingParams(temperature, top_k, top_p, min_p, seed), **fields)


def _make_draft(**fields: Any) -> Draft:
    draft = Draft(**fields)
    if not len(draft.parents) == len(draft.tokens) == len(draft.confidences):
        raise WireError("parents, tokens and confidences differ in length")
    if any(not ROOT <= parent < i for i, parent in enumerate(draft.parents)):
        raise WireError("a parent does not come before its child")
    return draft


def _make_rows(**fields: Any) -> Rows:
    rows = Rows(**fields)
    if not rows.width or not rows.data or len(rows.data) % (struct.calcsize("e") * rows.width):
        raise WireError("no whole rows")
    return rows


_SAMPLING = "sampling.temperature sampling.top_k sampling.top_p sampling.min_p sampling.seed"
_TAGS = {kind: tag for tag, kind in enumerate((Open, Commit, Close, Refuse, Draft, Want, Rows), start=1)}
_REFUSE = _TAGS[Refuse]
_TEXT, _TOKENS, _NODES = _Reader.text, _Reader.tokens, _Reader.nodes
_LAYOUTS = {
    _TAGS[Open]: _Layout(
        _make_open,
        "<QQIIdiddQ",
        f"session chain max_ahead n_dropped {_SAMPLING}",
        lead=_TEXT,
        tokens=_TOKENS,
        salt=_TEXT,
    ),
    _TAGS[Commit]: _Layout(Commit, "<QIQ", "session base chain", tokens=_TOKENS),
    _TAGS[Close]: _Layout(Close, "<Q?", "session keep", lead=_TEXT),
    _REFUSE: _Layout(Refuse, "<", "", lead=_TEXT, reason=_TEXT),
    _TAGS[Draft]: _Layout(
        _make_draft,
        "<QIQI",
        "session base chain td_us",
        drafter=_TEXT,
        parents=_NODES,
        tokens=_NODES,
        confidences=_Reader.confidences,
    ),
    _TAGS[Want]: _Layout(Want, "<QI", "session n_known", drafter=_TEXT),
    _TAGS[Rows]: _Layout(_make_rows, "<QII", "session base width", data=_Reader.rows),
}
# bytes of a message to a lead: those of the largest Draft
MAX_TO_LEAD = len(
    encode(Draft("d" * MAX_TEXT, 0, 0, 0, 0, (ROOT,) * MAX_NODES, (0,) * MAX_NODES, bytes(MAX_NODES)))
)
