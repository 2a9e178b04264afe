"""The draft model in the lead uses every cell of its KV cache, and no more."""

from __future__ import annotations

from server.engine.proposer import Ask, OpenedSession
from server.engine.request import Speculation
from server.sampling.params import SamplingParams
from server.speculation.sources.draft_model import DraftModel
from tests.fake_backend import FakeBackend, FakeModel

N_CELLS = 48
GREEDY = SamplingParams(temperature=0.0)


def opened(model: DraftModel, id: int, tokens: list[int]) -> None:
    """Begin a path after these tokens, which the model then evaluates."""
    model.follow(OpenedSession(id, tokens, GREEDY, Speculation()), Ask(id, N_CELLS))
    if n := model.behind(id):
        model.read(id, n)


def n_guessed(model: DraftModel, *sessions: int) -> int:
    """Return how many guesses in a row the model makes for each of these sessions."""
    for n in range(2 * N_CELLS):
        if None in model.guess(sessions, second=False):
            return n
    raise AssertionError("it never ends")


def test_guesses_take_cells_of_ended_sessions():
    backend = FakeBackend(FakeModel(eog_rate=0.0), n_cells=N_CELLS, n_seqs=4)
    model = DraftModel(backend)
    opened(model, 1, list(range(40, 60)))
    assert model.guess([1], second=False) != [None]
    model.close(1, keep=True)
    assert backend.n_used > 0, "an ended conversation stays cached"
    opened(model, 2, list(range(70, 80)))
    assert n_guessed(model, 2) == N_CELLS - 10
    assert model.guess([2], second=False) == [None], "the cache is full"


def test_sessions_share_cells_within_a_step():
    backend = FakeBackend(FakeModel(eog_rate=0.0), n_cells=N_CELLS, n_seqs=4)
    model = DraftModel(backend)
    opened(model, 1, list(range(40, 50)))
    opened(model, 2, list(range(70, 80)))
    assert n_guessed(model, 1, 2) == (N_CELLS - 20) // 2
    opened(model, 1, list(range(40, 50)))
    assert model.guess([1], second=False) != [None], "a new step forgets the guesses before it"
