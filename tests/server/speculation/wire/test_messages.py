"""The wire: its bytes are pinned, and nothing but those bytes is decoded."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.sampling.params import SamplingParams
from server.speculation.wire.messages import (
    MAX_MESSAGE_TOKENS,
    MAX_NODES,
    MAX_ROWS_BYTES,
    MAX_TEXT,
    ROOT,
    WIRE_VERSION,
    Close,
    Commit,
    Draft,
    Message,
    Open,
    Refuse,
    Rows,
    Want,
    WireError,
    chain_next,
    chain_start,
    decode,
    encode,
)

SAMPLING = SamplingParams(0.5, 40, 0.95, 0.05, 9)
GOLDEN: list[tuple[Message, str]] = [
    (
        Open("lead-1", 7, 0x1122334455667788, 16, SAMPLING, (1, 258, -1), "s", 3),
        "04 01  0700000000000000 8877665544332211 10000000 03000000"
        "000000000000e03f 28000000 666666666666ee3f 9a9999999999a93f 0900000000000000"
        "06000000 6c6561642d31  03000000 01000000 02010000 ffffffff  01000000 73",
    ),
    (
        Commit(7, 3, 0xFFFFFFFFFFFFFFFF, (5, 6)),
        "04 02  0700000000000000 03000000 ffffffffffffffff  02000000 05000000 06000000",
    ),
    (Close("lead-1", 7, keep=True), "04 03  0700000000000000 01  06000000 6c6561642d31"),
    (Refuse("lead-1", "größer"), "02 04  06000000 6c6561642d31  08000000 6772c3b6c39f6572"),
    (
        Draft("d", 7, 5, 6, 1500, (ROOT, 0, 0), (10, 11, 12), b"\xff\x80\x00"),
        "04 05  0700000000000000 05000000 0600000000000000 dc050000  01000000 64"
        "03000000 ffffffff 00000000 00000000  03000000 0a000000 0b000000 0c000000  03000000 ff8000",
    ),
    (Want("d", 7, 2), "04 06  0700000000000000 02000000  01000000 64"),
    (
        Rows(7, 5, 2, b"\x00\x3c\x00\xbc"),
        "04 07  0700000000000000 05000000 02000000  04000000 003c00bc",
    ),
]
EACH = pytest.mark.parametrize(("message", "golden"), GOLDEN, ids=[type(m).__name__ for m, _ in GOLDEN])


@EACH
def test_bytes_are_pinned(message: Message, golden: str) -> None:
    assert encode(message) == bytes.fromhex(golden)
    assert decode(bytes.fromhex(golden)) == message


def test_every_message_type_is_pinned() -> None:
    assert {type(message) for message, _ in GOLDEN} == set(Message.__args__)


@EACH
def test_truncated_anywhere(message: Message, golden: str) -> None:
    data = encode(message)
    for end in range(len(data)):
        with pytest.raises(WireError):
            decode(data[:end])


@EACH
def test_trailing_bytes(message: Message, golden: str) -> None:
    with pytest.raises(WireError, match="trailing"):
        decode(encode(message) + b"\0")


@EACH
def test_other_versions(message: Message, golden: str) -> None:
    data = encode(message)
    for version in (0, 1, 255):
        with pytest.raises(WireError, match=f"wire version {version}"):
            decode(bytes([version]) + data[1:])


@pytest.mark.parametrize("tag", [0, 8, 255])
def test_unknown_tags(tag: int) -> None:
    with pytest.raises(WireError, match="unknown message tag"):
        decode(bytes([WIRE_VERSION, tag]) + bytes(64))


def test_lists_beyond_their_bounds() -> None:
    commit = encode(Commit(7, 3, 4, ()))[:-4]
    n = MAX_MESSAGE_TOKENS + 1
    with pytest.raises(WireError, match="at most"):
        decode(commit + struct.pack("<I", n) + bytes(4 * n))
    n = MAX_NODES + 1
    with pytest.raises(WireError, match="at most"):
        decode(encode(Draft("d", 7, 5, 6, 0, (ROOT,) * n, (1,) * n, bytes(n))))
    with pytest.raises(WireError, match="at most"):
        decode(encode(Want("d" * (MAX_TEXT + 1), 7, 2)))


def test_lists_at_their_bounds() -> None:
    n = MAX_NODES
    for message in (
        Draft("d" * MAX_TEXT, 7, 5, 6, 0, (ROOT,) * n, (1,) * n, bytes(n)),
        Commit(7, 3, 4, (1,) * MAX_MESSAGE_TOKENS),
    ):
        assert decode(encode(message)) == message


def test_false_length_is_an_error() -> None:
    commit = encode(Commit(7, 3, 4, ()))[:-4]
    with pytest.raises(WireError, match="too short"):
        decode(commit + struct.pack("<I", MAX_MESSAGE_TOKENS))


@pytest.mark.parametrize("parents", [(0,), (ROOT, 1), (ROOT, 0, 2), (-2,), (ROOT, 2**31 - 1)])
def test_parents_come_before_children(parents: tuple[int, ...]) -> None:
    n = len(parents)
    with pytest.raises(WireError, match="parent"):
        decode(encode(Draft("d", 7, 5, 6, 0, parents, (1,) * n, bytes(n))))


@pytest.mark.parametrize(("parents", "tokens", "confidences"), [(1, 2, 2), (2, 1, 2), (2, 2, 1)])
def test_a_draft_describes_each_node_once(parents: int, tokens: int, confidences: int) -> None:
    with pytest.raises(WireError, match="differ in length"):
        decode(encode(Draft("d", 7, 5, 6, 0, (ROOT,) * parents, (1,) * tokens, bytes(confidences))))


@pytest.mark.parametrize("text", ["a\nb", "a\x1b[2J", "a\u202eb", "a\0"])
def test_text_that_would_garble_a_log(text: str) -> None:
    with pytest.raises(WireError, match="garble"):
        decode(encode(Refuse("lead-1", text)))


def test_refusal_reads_in_version_two() -> None:
    """A version 2 drafter logs why it is refused."""
    refusal = encode(Refuse("lead-1", "no"))
    assert refusal[0] == 2 != WIRE_VERSION
    with pytest.raises(WireError, match="wire version 4"):
        decode(bytes([WIRE_VERSION]) + refusal[1:])


def test_text_that_is_not_utf8() -> None:
    data = encode(Refuse("lead-1", "no"))
    with pytest.raises(WireError, match="UTF-8"):
        decode(data.replace(b"lead", b"\xff\xfe\xfd\xfc"))


@given(st.binary(max_size=200), st.integers(0, 7))
def test_any_bytes_decode_or_fail(body: bytes, tag: int) -> None:
    for data in (body, bytes([WIRE_VERSION, tag]) + body):
        try:
            message = decode(data)
        except WireError:
            continue
        assert type(message) in Message.__args__


U64, U32 = st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)
I32 = st.integers(-(2**31), 2**31 - 1)
TEXT = st.text(max_size=40).filter(str.isprintable)
TOKENS = st.lists(I32, max_size=40).map(tuple)
FINITE = st.floats(allow_nan=False)


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    tokens = draw(TOKENS)
    parents = tuple(draw(st.integers(ROOT, i - 1)) for i in range(len(tokens)))
    confidences = draw(st.binary(min_size=len(tokens), max_size=len(tokens)))
    head = (draw(TEXT), draw(U64), draw(U32), draw(U64), draw(U32))
    return Draft(*head, parents, tokens, confidences)


MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(
        Open,
        TEXT,
        U64,
        U64,
        U32,
        st.builds(SamplingParams, FINITE, I32, FINITE, FINITE, U64),
        TOKENS,
        TEXT,
        U32,
    ),
    st.builds(Commit, U64, U32, U64, TOKENS),
    st.builds(Close, TEXT, U64, st.booleans()),
    st.builds(Refuse, TEXT, TEXT),
    drafts(),
    st.builds(Want, TEXT, U64, U32),
    st.builds(Rows, U64, U32, st.just(3), st.integers(1, 5).map(lambda n: bytes(range(6)) * n)),
)


@pytest.mark.parametrize(("width", "data"), [(2, b"\0" * 6), (0, b"\0" * 4), (2, b"")])
def test_rows_are_whole(width: int, data: bytes) -> None:
    with pytest.raises(WireError, match="no whole rows"):
        decode(encode(Rows(7, 5, width, data)))


def test_rows_are_bounded() -> None:
    assert decode(encode(Rows(7, 5, 1, bytes(MAX_ROWS_BYTES))))
    with pytest.raises(WireError, match="at most"):
        decode(encode(Rows(7, 5, 1, bytes(MAX_ROWS_BYTES + 2))))


@given(MESSAGES)
def test_round_trip(message: Message) -> None:
    assert decode(encode(message)) == message


def test_not_a_number_arrives_as_such() -> None:
    """The wire carries it; whoever uses sampling parameters must be ready for it."""
    sampling = SamplingParams(math.nan, 0, 1.0, 0.0, 0)
    arrived = decode(encode(Open("l", 1, 1, 1, sampling, ())))
    assert isinstance(arrived, Open)
    assert math.isnan(arrived.sampling.temperature)


def test_chain_hash_is_pinned() -> None:
    """Lead and drafter compute it in different processes, perhaps of different versions."""
    assert chain_next(0, 0) == 0x9E3779BD8EF1B1DE
    assert chain_next(chain_next(0, 1), 2) == 0xF36A0F6835B34DEB
    assert chain_start([1, 2, 3]) == 0x8C283046C4469B8A


@given(U64, st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_different_tokens_make_different_chains(chain: int, one: int, other: int) -> None:
    assert (chain_next(chain, one) == chain_next(chain, other)) == (one == other)
