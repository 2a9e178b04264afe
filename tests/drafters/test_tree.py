"""Small trees: branches at doubtful positions, what becomes of them, and that they hold nobody up."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from server.drafting.draft_cache import BRANCH_LENGTH
from server.drafting.draft_session import GREEDY
from server.errors import BackendError
from server.llama.backend import Batch, Logits
from server.llama.shapes import UNKNOWN, Shapes
from server.sampling.draw import draw
from server.sampling.noise import gumbel, mix
from server.sampling.params import SamplingParams
from server.speculation.wire.messages import ROOT, Close, Commit, Draft, chain_next, chain_start
from tests.drafters.scene import ENDLESS, PROMPT, Scene, commit, open_, told
from tests.fake_backend import FakeBackend, FakeModel

DOUBTFUL = FakeModel(eog_rate=0.0, sharpness=3.0)
SURE = FakeModel(eog_rate=0.0, sharpness=1e4)
START = PROMPT[:30]
AHEAD = 12
# A change of width costs more than rows
ONE_SHAPE = Shapes({1: 1e-3, 2: 1e-3, 3: 1e-3}, {1: 2e-3, 2: 2e-3, 3: 2e-3})


def chain_of(context: Sequence[int]) -> int:
    """Return the toy's own hash of a context."""
    chain = 0
    for token in context:
        chain = mix(chain + token + 1)
    return chain


def choices(context: Sequence[int], model: FakeModel = DOUBTFUL) -> tuple[int, int, int]:
    """Return the three tokens that the toy thinks likeliest."""
    first, second, third = np.argsort(-model.logits(chain_of(context)))[:3].tolist()
    return first, second, third


class Reader:
    """Assembles a session's drafts as a lead does, and checks each guess against the toy."""

    def __init__(self, prompt: Sequence[int] = PROMPT, session: int = 1) -> None:
        self.session = session
        self.contexts = {chain_start(prompt): tuple(prompt)}
        self.n_second = 0
        self.n_guesses = 0

    def read(self, drafts: Sequence[Draft]) -> None:
        for draft in drafts:
            if draft.session != self.session:
                continue
            context = self.contexts[draft.chain]
            assert draft.base == len(context)
            assert draft.parents == tuple(range(ROOT, len(draft.tokens) - 1))
            chain = draft.chain
            for i, token in enumerate(draft.tokens):
                first, *others = choices(context)
                assert token == first or (i == 0 and token in others)
                self.n_second += token in others
                self.n_guesses += 1
                context, chain = (*context, token), chain_next(chain, token)
                self.contexts[chain] = context

    def leaves(self, committed: Sequence[int]) -> list[tuple[int, ...]]:
        """Return every path guessed after these tokens, each to its end."""
        here = tuple(committed)
        below = [c for c in self.contexts.values() if len(c) > len(here) and c[: len(here)] == here]
        ends = [c for c in below if not any(len(d) > len(c) and d[: len(c)] == c for d in below)]
        return [c[len(here) :] for c in ends]


class Tree:
    """The drafts for START: the path, and the branches by where they leave it."""

    def __init__(self, scene: Scene) -> None:
        reader = Reader(START)
        reader.read(scene.lead.drafts())
        best = told(AHEAD, START, DOUBTFUL)
        leaves = reader.leaves(START)
        self.path = max(leaves, key=lambda leaf: common(leaf, best))
        others = [leaf for leaf in leaves if leaf != self.path]
        self.branches = {common(leaf, best): leaf for leaf in sorted(others, key=len)}  # by fork, the longest


def common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


class Recording(FakeBackend):
    """A backend that records the position of each step's first row, which is the path's."""

    def __init__(self) -> None:
        super().__init__(DOUBTFUL)
        self.first: list[int] = []

    def decode(self, batch: Batch) -> Logits:
        self.first.append(batch.positions[0])
        return FakeBackend.decode(self, batch)


def drafting(backend: FakeBackend | None = None) -> Scene:
    """Return a scene with an open session and its first tree."""
    scene = Scene(backend or FakeBackend(DOUBTFUL), n_branches=8)
    scene.send(open_(START, max_ahead=AHEAD))
    return scene


def committed(*tokens: int) -> Commit:
    return commit(*tokens, prompt=START)


def n_stale(scene: Scene) -> int:
    """Return the cells in sequences that nobody has."""
    sequences = scene.model_drafter._cache.slots  # pyright: ignore[reportPrivateUsage]
    free = [sequences.seqs[slot] for slot in sequences.unforked]
    return sum(len(scene.backend._chains.get(seq, [])) for seq in free)  # pyright: ignore[reportPrivateUsage]


def test_doubtful_positions_get_a_second_way():
    tree = Tree(drafting())
    assert tree.path == tuple(told(AHEAD, START, DOUBTFUL))
    assert len(tree.branches) > 2
    for fork, branch in tree.branches.items():
        assert branch[fork] in choices((*START, *tree.path[:fork]))[1:]
    assert max(len(branch) - fork for fork, branch in tree.branches.items()) > 2


def test_sure_path_has_no_branches():
    scene = Scene(FakeBackend(SURE), n_branches=8)
    scene.send(open_())
    assert scene.backend.widths == [len(PROMPT), 1, 1, 1, 1, 1]
    assert scene.drafted() == told(6, model=SURE)


def test_the_first_guess_goes_out_at_once():
    scene = drafting()
    ends = [draft.base + len(draft.tokens) - len(START) for draft in scene.lead.drafts()]
    assert ends[0] == 1


def test_right_branch_is_not_reevaluated():
    backend = Recording()
    scene = drafting(backend)
    fork, branch = min(Tree(scene).branches.items())
    n_steps, n_drafts = len(scene.backend.widths), len(scene.lead.drafts())
    scene.send(committed(*branch[: fork + 1]))
    assert backend.first[n_steps] == len(START) + len(branch) - 1, "it goes on where the branch ended"
    first = scene.lead.drafts()[n_drafts]
    assert first.base == len(START) + len(branch), "and tells only what is new"
    assert list(first.tokens) == told(AHEAD, (*START, *branch), DOUBTFUL)[: len(first.tokens)]


def test_branch_keeps_its_agreeing_part():
    scene = drafting()
    fork, branch = min(Tree(scene).branches.items())
    n_steps, n_drafts = len(scene.backend.widths), len(scene.lead.drafts())
    wrong = (*branch[: fork + 2], (branch[fork + 2] + 1) % 97)
    scene.send(committed(*wrong))
    assert scene.backend.widths[n_steps] == 1
    first = scene.lead.drafts()[n_drafts]
    assert (first.base, first.tokens[0]) == (len(START) + len(wrong), choices((*START, *wrong))[0])


def test_branches_stay_while_the_path_comes_true():
    scene = drafting()
    tree = Tree(scene)
    fork, branch = max(tree.branches.items())
    scene.send(committed(*tree.path[:fork]))
    n_drafts = len(scene.lead.drafts())
    scene.send(committed(*branch[: fork + 1]))
    assert scene.lead.drafts()[n_drafts].base >= len(START) + len(branch)


def test_followed_branch_keeps_its_cells():
    scene = drafting()
    scene.send(open_(START[:20], session=2, max_ahead=AHEAD))
    fork, branch = min(Tree(scene).branches.items())
    scene.worker.received(committed(*branch[: fork + 1]))
    scene.worker.received(Close("lead", 2, keep=True))  # before the next step
    n_drafts = len(scene.lead.drafts())
    scene.settle()
    first = scene.lead.drafts()[n_drafts]
    assert first.base == len(START) + len(branch)
    assert n_stale(scene) == 0


def test_reopened_session_returns_its_branches():
    scene = drafting()
    n_drafts = len(scene.lead.drafts())
    scene.send(open_(START[:15], max_ahead=1, sampling=replace(GREEDY, seed=1)))
    assert scene.n_failures == 0
    assert list(scene.lead.drafts()[n_drafts].tokens) == told(1, START[:15], DOUBTFUL)
    n_branches = len(scene.worker._sessions[1].branches)  # pyright: ignore[reportPrivateUsage]
    assert len(scene.model_drafter._cache.slots.unforked) == 8 - n_branches  # pyright: ignore[reportPrivateUsage]


def test_missed_branches_cost_the_gap():
    scene = drafting()
    fork, branch = min(Tree(scene).branches.items())
    n_steps = len(scene.backend.widths)
    scene.send(committed(*branch[:fork], 1, 2))
    assert scene.backend.widths[n_steps] == 2


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param(FakeBackend(DOUBTFUL, n_seqs=1), id="one sequence"),
        pytest.param(FakeBackend(DOUBTFUL, can_trim=False), id="a model that cannot forget"),
        pytest.param(FakeBackend(DOUBTFUL, n_cells=len(START) + AHEAD + BRANCH_LENGTH), id="few cells"),
    ],
)
def test_no_room_means_only_paths(backend: FakeBackend):
    tree = Tree(drafting(backend))
    assert tree.path == tuple(told(AHEAD, START, DOUBTFUL))
    assert not tree.branches


def test_branches_make_room_for_another_session():
    scene = drafting(FakeBackend(DOUBTFUL, n_cells=110))
    assert Tree(scene).branches
    scene.send(open_(PROMPT[:60], session=2, max_ahead=2))
    assert scene.drafted(2)[:2] == told(2, PROMPT[:60], DOUBTFUL)


def test_all_leaves_of_all_sessions_share_decodes():
    scene = Scene(FakeBackend(DOUBTFUL), n_branches=8)
    prompts = {i: (*PROMPT[:20], i) for i in range(1, 4)}
    scene.send(*(open_(prompt, session=i, max_ahead=10) for i, prompt in prompts.items()))
    for i, prompt in prompts.items():
        reader = Reader(prompt, i)
        reader.read(scene.lead.drafts())
        assert max(map(len, reader.leaves(prompt))) >= 4
    assert max(scene.backend.widths[1:]) > 3


def test_sessions_share_alternative_sequences():
    scene = Scene(FakeBackend(DOUBTFUL), n_branches=4)
    prompts = {i: (*PROMPT[:20], i) for i in range(1, 5)}
    scene.send(*(open_(prompt, session=i, max_ahead=10) for i, prompt in prompts.items()))
    for i, prompt in prompts.items():
        reader = Reader(prompt, i)
        reader.read(scene.lead.drafts())
        assert reader.n_second > 0, f"session {i} has a path only"


def test_sessions_that_begin_alike_share_the_beginning():
    scene = Scene(FakeBackend(ENDLESS))
    scene.send(open_(session=1, max_ahead=3))
    n_steps = len(scene.backend.widths)
    scene.send(open_((*PROMPT, 1), session=2, max_ahead=3))
    assert scene.backend.widths[n_steps] == 1
    assert scene.drafted(2) == told(3, (*PROMPT, 1))


def test_failed_decode_frees_branches():
    class Faulty(FakeBackend):
        fails = False

        def decode(self, batch: Batch) -> Logits:
            if self.fails:
                self.fails = False
                raise BackendError("once")
            return FakeBackend.decode(self, batch)

    backend = Faulty(DOUBTFUL)
    scene = drafting(backend)
    fork, branch = min(Tree(scene).branches.items())
    backend.fails = True
    n_drafts = len(scene.lead.drafts())
    scene.send(committed(*branch[: fork + 1]))
    first = scene.lead.drafts()[n_drafts]
    assert list(first.tokens) == told(AHEAD, (*START, *branch), DOUBTFUL)[: len(first.tokens)]
    scene.send(Close("lead", 1, False))
    assert scene.backend.n_used == 0


def test_noise_is_mirrored_in_branches():
    sampling = SamplingParams(1.0, 0, 1.0, 0.0, 11)
    scene = Scene(FakeBackend(FakeModel(eog_rate=0.0, sharpness=1.0)), n_branches=8)
    scene.send(open_(sampling=sampling))
    row = scene.backend.model.logits(chain_of(PROMPT))
    scores = row + gumbel(11, len(PROMPT), np.arange(len(row)))
    first = [draft.tokens[0] for draft in scene.lead.drafts() if draft.base == len(PROMPT)]
    assert first == np.argsort(-scores)[:3].tolist()


@pytest.mark.parametrize(("drafter_seed", "likeliest"), [(1, False), (9, True)])
def test_better_rule_wins_by_measurement(drafter_seed: int, likeliest: bool):
    """One lead has the drafter's own model and noise, the other has other noise."""
    model = FakeModel(eog_rate=0.0, sharpness=1.5)
    scene = Scene(FakeBackend(model), n_branches=8)
    said = list[int]()
    scene.send(open_(sampling=SamplingParams(1.0, 0, 1.0, 0.0, drafter_seed)))
    own = SamplingParams(1.0, 0, 1.0, 0.0, 1)
    for _ in range(400):
        context = (*PROMPT, *said)
        said.append(draw(model.logits(chain_of(context)), own, len(context)))
        scene.send(commit(*said))
    assert scene.model_drafter.rule.likeliest == likeliest
    assert scene.model_drafter.rule.n_judged > 300


@dataclass
class Flying(FakeBackend):
    """A backend that counts the decodes begun ahead."""

    n_started = 0

    def start(self, batch: Batch) -> Callable[[], Logits]:
        self.n_started += 1
        return FakeBackend.start(self, batch)


def test_costly_shapes_leave_paths_alone():
    scene = Scene(FakeBackend(DOUBTFUL), n_branches=8, shapes=ONE_SHAPE)
    scene.send(open_(START, max_ahead=AHEAD))
    assert scene.backend.widths == [len(START), *[1] * (AHEAD - 1)]
    assert scene.drafted() == told(AHEAD, START, DOUBTFUL)


@pytest.mark.parametrize(("n_branches", "shapes"), [(8, UNKNOWN), (0, UNKNOWN), (8, ONE_SHAPE)])
@pytest.mark.parametrize("seed", range(12))
def test_all_guesses_are_the_toys(seed: int, n_branches: int, shapes: Shapes):
    """Between two decodes the lead takes the path, branches or neither, or begins anew.

    The toy's cache is strict, so a branch in the wrong sequence, or trimmed wrongly, gives other guesses or
    an error. With an odd seed, and without branches, decodes of paths alone are begun ahead, as on a GPU.
    """
    chance = random.Random(seed)
    overlaps = not n_branches or seed % 2 == 1
    ahead = overlaps and (not n_branches or shapes is ONE_SHAPE)
    n_cells, n_seqs = chance.choice([140, 400, 4096]), chance.choice([4, 16])
    backend = Flying(DOUBTFUL, n_cells=n_cells, n_seqs=n_seqs, overlaps=overlaps)
    scene = Scene(backend, n_branches=n_branches, shapes=shapes)
    prompts = {1: PROMPT[:40], 2: PROMPT[10:50]}
    readers = {i: Reader(prompt, i) for i, prompt in prompts.items()}
    said: dict[int, list[int]] = {i: [] for i in prompts}
    heard = 0
    for i, prompt in prompts.items():
        scene.bus.send("drafter", open_(prompt, session=i, max_ahead=chance.randrange(2, 12)))
    for _ in range(150):
        scene.pool.pump()
        scene.now += chance.random() * 0.01
        scene.worker.turn(wait=False)
        scene.pool.pump()
        drafts, heard = scene.lead.drafts()[heard:], len(scene.lead.drafts())
        for reader in readers.values():
            reader.read(drafts)
        if chance.random() < 0.3:
            i = chance.choice([*prompts])
            before = (*prompts[i], *said[i])
            leaves = [*readers[i].leaves(before), (chance.randrange(97, 120),)]
            leaf = chance.choice(leaves)
            new = [*leaf[: chance.randrange(1, len(leaf) + 1)], *chance.choice([[], [], [98]])]
            said[i] += new[: max(1, 100 - len(said[i]))]
            told_ = commit(*said[i], session=i, prompt=prompts[i])
            readers[i].contexts[told_.chain] = (*prompts[i], *said[i])
            scene.bus.send("drafter", told_)
        if chance.random() < 0.03:
            i = chance.choice([*prompts])
            scene.bus.send("drafter", Close("lead", i, False))
            opened = open_((*prompts[i], *said[i]), session=i, max_ahead=chance.randrange(2, 12))
            readers[i].contexts[opened.chain] = opened.tokens
            scene.bus.send("drafter", opened)
    scene.settle()
    assert backend.n_started > 20 if ahead else overlaps or not backend.n_started
    assert sum(reader.n_guesses for reader in readers.values()) > 30
    scene.send(*(Close("lead", i, False) for i in prompts))
    assert scene.backend.n_used == 0 or scene.backend.n_cells == 140, "some gave up their cells"
    assert scene.worker.n_sessions == 0
