"""Steps of one shape have the text of other steps.

Each has as many rows, of one session also sequences, whatever is guessed.
"""

from __future__ import annotations

import pytest

from server.engine.branches import branches
from server.engine.proposer import Plan, Proposer, Upcoming
from server.engine.request import GenerationRequest, Speculation
from server.engine.scheduler import Limits
from server.llama.backend import Batch, Logits
from server.sampling.params import SamplingParams
from tests.fake_backend import FakeBackend, FakeModel
from tests.server.engine.test_branches import TreeOracle
from tests.support import Harness

LEAVES, WIDTH = 3, 9


class Shapes(FakeBackend):
    """A backend that keeps rows, outputs and sequences of every decode."""

    def __init__(self) -> None:
        super().__init__(FakeModel(sharpness=4.0, eog_rate=0.0), n_seqs=4 * LEAVES)
        self.shapes: list[tuple[int, int, int]] = []

    def decode(self, batch: Batch) -> Logits:
        seqs = {*batch.seqs, *(seq for shared in batch.shared.values() for seq in shared)}
        self.shapes.append((len(batch), sum(batch.wanted), len(seqs)))
        return super().decode(batch)


class Wide(TreeOracle):
    """A proposer of trees for steps of one width, now and then of nothing."""

    width = 0  # of the last step that it was asked for

    def __init__(self, texts: list[list[int]]) -> None:
        super().__init__(texts)
        self.leaves: list[tuple[int, int]] = []  # of each step: width, and leaves of all sessions

    def plan(self, step: Upcoming) -> Plan:
        plan, n = super().plan(step), step.n_deciding
        if n:
            plan.width = self.width = WIDTH * n if step.n_rows == n else 0
            plan.is_shape = self.width > 0
            each = [max(1, branches(proposal.parents).n_leaves) for proposal in plan.proposals]
            self.leaves.append((self.width, sum(each)))
        return plan


def texts(backend: Shapes, proposer: Proposer | None, n: int) -> list[list[int]]:
    harness = Harness(backend, proposer, limits=Limits(draft_max=8, leaves=LEAVES))
    sampling = [SamplingParams(0.7, seed=i) for i in range(n)]
    prompts = [list(f"tell me more, {i}".encode()) for i in range(n)]
    pairs = zip(prompts, sampling, strict=True)
    outcomes = harness.run(*(GenerationRequest(p, s, max_tokens=60) for p, s in pairs))
    return [[*prompt, *outcome.tokens] for prompt, outcome in zip(prompts, outcomes, strict=True)]


def test_undrafted_session_sets_own_width():
    """Nobody is asked for guesses, so the width of an earlier step says nothing."""
    backend = Shapes()
    oracle = Wide([])
    harness = Harness(backend, oracle, limits=Limits(draft_max=8, leaves=LEAVES))
    harness.run(GenerationRequest(list(b"with drafts"), SamplingParams(0.0), max_tokens=5))
    assert oracle.width == WIDTH
    n_before = len(backend.shapes)
    none = Speculation(n_max=0)
    harness.run(GenerationRequest(list(b"without"), SamplingParams(0.0), max_tokens=5, speculation=none))
    assert set(backend.shapes[n_before + 1 :]) == {(1, 1, 1)}


@pytest.mark.parametrize("n", [1, 3])
def test_padded_steps_keep_the_text(n: int):
    plain = texts(Shapes(), None, n)
    backend = Shapes()
    oracle = Wide(plain)
    assert texts(backend, oracle, n) == plain
    assert oracle.n_branched > 0
    full = [shape for shape in backend.shapes if shape[0] == WIDTH * n]
    assert len(full) > 5
    assert {shape[:2] for shape in full} == {(WIDTH * n, WIDTH * n)}
    seqs = [shape[2] for shape in full]
    if n == 1:
        assert set(seqs) == {LEAVES}
    else:
        assert seqs == [n_leaves for width, n_leaves in oracle.leaves if width == WIDTH * n]
        assert min(seqs) < max(seqs)


def test_last_steps_keep_the_shape():
    backend = Shapes()
    texts(backend, Wide([]), 1)
    first = next(i for i, shape in enumerate(backend.shapes) if shape[0] == WIDTH)
    assert set(backend.shapes[first:]) == {(WIDTH, WIDTH, LEAVES)}


@pytest.mark.parametrize(
    ("n_ctx", "n_cells"),
    [pytest.param(48, 4096, id="a short context"), pytest.param(1024, 48, id="few cells")],
)
def test_padding_ends_where_there_is_no_room(n_ctx: int, n_cells: int):
    """The toy refuses rows beyond its context, and more cells than it has."""
    prompt = list(b"a prompt of some length")
    outcomes: list[tuple[int, ...]] = []
    for proposer in (None, Wide([])):
        backend = Shapes()
        backend.n_ctx, backend.n_cells = n_ctx, n_cells
        harness = Harness(backend, proposer, limits=Limits(draft_max=8, leaves=LEAVES))
        (outcome,) = harness.run(GenerationRequest(prompt, SamplingParams(0.0), max_tokens=48 - len(prompt)))
        outcomes.append(outcome.tokens)
        assert len(outcome.tokens) == 48 - len(prompt)
    assert outcomes[0] == outcomes[1]
    widths = [shape[0] for shape in backend.shapes]
    assert WIDTH in widths
    assert widths[-1] < WIDTH
