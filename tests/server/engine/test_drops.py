"""What a context shift drops, and what the toy makes of it."""

from __future__ import annotations

import pytest

from server.engine.request import GenerationRequest
from server.engine.session import Session
from server.errors import BackendError
from server.llama.backend import Batch
from tests.fake_backend import FakeBackend
from tests.server.engine.shifting import ENDLESS, N_CTX

# -- which tokens go ----------------------------------------


@pytest.mark.parametrize(
    ("n_keep", "expected"),
    [(0, (0, 44)), (20, (20, 54)), (89, (86, 87)), (5000, (86, 87))],
)
def test_shift_drops_like_llama_server(n_keep: int, expected: tuple[int, int]):
    session = Session(1, GenerationRequest(tuple(range(N_CTX)), n_keep=n_keep), N_CTX)
    assert session.is_full
    assert session.next_drop() == expected


def test_replayed_drops_restore_the_list():
    session = Session(1, GenerationRequest(tuple(range(60)), n_keep=7), 60)
    for n in range(3):
        session.drop(*session.next_drop())
        session.tokens += range(100 * n, 100 * n + session.n_ctx - len(session.tokens))
    held, drops = session.tokens, list(session.drops)
    whole = (session.position, session.n_generated)
    session.rewind()
    assert session.tokens == list(range(60))
    assert session.n_generated == whole[1]
    session.drop(*session.next_drop())
    session.rewind()  # pushed out again on the way
    for _ in range(3):
        assert session.is_rewound
        assert session.is_full
        session.drop(*session.next_drop())
    assert not session.is_rewound
    assert session.tokens is held
    assert session.drops == drops
    assert (session.position, session.n_generated) == whole


# -- the toy is strict ----------------------------------------


def fed(tokens: bytes) -> FakeBackend:
    fake = FakeBackend(ENDLESS)
    batch = Batch()
    batch.extend(0, 0, list(tokens), 1)
    fake.decode(batch)
    return fake


def next_row(fake: FakeBackend, position: int) -> list[float]:
    batch = Batch()
    batch.extend(0, position, [65], 1)
    return [float(x) for x in fake.decode(batch)[0]]


def test_toy_notices_wrong_shifts():
    rows = [next_row(fed(b"abcdefgh"), 8), next_row(fed(b"abfgh"), 5)]
    for start, end in ((2, 5), (1, 4), (2, 6)):
        fake = fed(b"abcdefgh")
        fake.shift(0, start, end)
        rows.append(next_row(fake, 8 - (end - start)))
    assert len({tuple(row) for row in rows}) == len(rows)


def test_toy_refuses_shared_cell_moves():
    fake = fed(b"abcdefgh")
    fake.copy(0, 1, 0, 7)
    with pytest.raises(BackendError, match="sequence 1 shares cells"):
        fake.shift(0, 2, 5)
    fake.trim(1, 5)
    fake.shift(0, 2, 5)
    assert fake.length(0) == 5
    with pytest.raises(BackendError, match="cannot shift"):
        fake.shift(0, 2, 6)
