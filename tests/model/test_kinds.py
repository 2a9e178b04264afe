"""Every kind of model that people run: guesses, earlier turns and where the cache is change no text.

The weights are random (random_models.py): the texts depend on all that the model remembers. F32 weights and
cache, and never a batch of one row, as in test_invariance.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest

from server.cache.files import DiskTier
from server.cache.snapshots import Snapshots
from server.engine.checkpoints import TURN_MARGIN
from server.engine.request import GenerationRequest
from server.errors import StartupError
from server.lead.calibration import measure
from server.llama import tails
from server.llama.backend import Batch, Logits
from server.llama.llamacpp import LlamaBackend, LlamaOptions
from server.llama.options import TensorPlace, Weights, tensor_places
from server.sampling.params import SamplingParams
from tests.model.conftest import open_exact
from tests.model.duet import Duet, counts
from tests.model.kinds import KINDS, WINDOW
from tests.model.live import Padded
from tests.model.random_models import write
from tests.support import Outcome

pytestmark = pytest.mark.model

N_TOKENS, N_MORE = 68, 12  # more than a conversation has to have of its own to be worth saving
SYSTEM = tuple(100 + 7 * i for i in range(100))  # beyond all windows, and long enough for a mark
N_OWN = 40  # tokens of a first prompt beyond that: more than a template may write otherwise
STATEFUL = ("deepseek4", "mamba", "jamba", "granitehybrid", "qwen35", "lfm2", "lfm2-window")
STREAMS = "qwen3-streams"  # each conversation with a KV cache of its own
N_STREAMS = 4
TAILS = {"qwen35-tail": 3, "lfm2-tail": 2, "deepseek4-tail": 4}  # n_tail of these kinds
at_temperatures = pytest.mark.parametrize("temperature", [0.0, 1.0])


Conversation: TypeAlias = list[tuple[GenerationRequest, tuple[int, ...]]]


@dataclass
class Subject:
    """A kind of model, and one that guesses some of its text.

    said: requests with their replies, each evaluated alone from its first token, without guesses.
    """

    name: str
    target: LlamaBackend
    draft: LlamaBackend
    said: dict[float, Conversation] = field(default_factory=dict[float, "Conversation"])

    def conversation(self, temperature: float) -> Conversation:
        """Return two requests, a turn after each, and one that leaves the second reply in its middle."""
        if temperature not in self.said:
            first = [self._alone(_ask(SYSTEM, temperature, seed)) for seed in (1, 2)]
            later: list[GenerationRequest] = []
            for ask, reply in first:
                later.append(_ask((*ask.prompt, *reply, 5, 6, 7), temperature, 3, N_MORE))
            ask, reply = first[1]
            later.append(_ask((*ask.prompt, *reply[:-30], 9, 9), temperature, 4, N_MORE))
            self.said[temperature] = [*first, *map(self._alone, later)]
        return self.said[temperature]

    def _alone(self, ask: GenerationRequest) -> tuple[GenerationRequest, tuple[int, ...]]:
        [outcome] = Duet(Padded(self.target)).run(ask)
        return ask, outcome.tokens


def _ask(prompt: tuple[int, ...], temperature: float, seed: int, n: int = N_TOKENS) -> GenerationRequest:
    own = () if len(prompt) > len(SYSTEM) else range(500 * seed, 500 * seed + N_OWN)
    sampling = SamplingParams(temperature, top_k=0, top_p=1.0, min_p=0.0, seed=seed)
    return GenerationRequest((*prompt, *own), sampling, n)


@pytest.fixture(scope="module", params=[*KINDS, STREAMS, *TAILS])
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    name: str = request.param
    folder = tmp_path_factory.mktemp("kinds")
    target, draft = folder / f"{name}.gguf", folder / "draft.gguf"
    kind = KINDS[name.removesuffix("-streams").removesuffix("-tail")]
    write(target, kind)
    write(draft, kind, noise=0.02)
    with (
        pytest.MonkeyPatch.context() as patch,
        closing(opened(patch, target, N_STREAMS if name == STREAMS else 0, TAILS.get(name, 0))) as one,
        closing(_open_draft(draft)) as other,
    ):
        yield Subject(name, one, other)


def always(*_: object) -> bool:
    return True


def opened(patch: pytest.MonkeyPatch, path: Path, n_streams: int, n_tail: int) -> LlamaBackend:
    patch.setattr(tails, "SHARE", 100.0)  # the weights are smaller than the states
    patch.setattr(tails, "gains", always)
    return open_exact(path, n_streams, n_tail)


def _open_draft(path: Path) -> LlamaBackend:
    return LlamaBackend(LlamaOptions(path, n_cells=4096, n_seqs=8))


def test_trimming_is_detected_by_trying(subject: Subject):
    kind = subject.name.removesuffix("-tail")
    assert subject.target.can_trim == (kind not in STATEFUL)
    assert subject.target.can_shift == subject.target.can_trim
    assert subject.target.can_copy == (kind != "deepseek4")
    assert subject.target.n_tail == TAILS.get(subject.name, 0)
    assert bool(measure(emptied(subject.target), 2, budget_s=0.05)) == subject.target.can_copy


def test_experts_in_host_memory_change_no_logits(tmp_path: Path):
    path = tmp_path / "qwen3moe.gguf"
    write(path, KINDS["qwen3moe"])
    places = tensor_places(["output_norm=CPU"], cpu_moe=True, n_cpu_moe=0)
    with (
        closing(open_exact(path)) as one,
        closing(open_exact(path, weights=Weights(places=places))) as other,
    ):
        assert (last_logits(one, range(300, 340)) == last_logits(other, range(300, 340))).all()
        assert one.options.numerics != other.options.numerics
    with pytest.raises(StartupError, match=r"no buffer CUDA9 here, only .*CPU"):
        open_exact(path, weights=Weights(places=(TensorPlace("exps", "CUDA9"),)))


def test_weights_make_remembered_tokens_count(subject: Subject):
    """Tokens beyond the window count, though no single layer sees them."""
    tokens = list(range(300, 300 + 2 * WINDOW))
    logits = last_logits(subject.target, tokens)
    other = last_logits(subject.target, [tokens[0] + 1, *tokens[1:]])
    assert np.abs(logits - other).max() > 0.001
    recent = last_logits(subject.target, [*tokens[:-8], tokens[-8] + 1, *tokens[-7:]])
    assert np.abs(logits - recent).max() > 0.1


def last_logits(backend: LlamaBackend, tokens: Sequence[int]) -> Logits:
    batch = Batch()
    batch.extend(0, 0, tokens, 1)
    return emptied(backend).decode(batch).copy()


def emptied(backend: LlamaBackend) -> LlamaBackend:
    for seq in range(backend.n_seqs):
        backend.trim(seq, 0)
    return backend


def in_turns(duet: Duet, subject: Subject, temperature: float) -> list[Outcome]:
    """Run the first requests at once, then the one that leaves a reply, then the next turns.

    Checks that replies equal those of each alone.
    """
    asks, expected = zip(*subject.conversation(temperature), strict=True)
    first, last = duet.run(*asks[:2]), duet.run(asks[4])
    outcomes = [*first, *duet.run(*asks[2:4]), *last]
    for i, (outcome, reply) in enumerate(zip(outcomes, expected, strict=True)):
        assert outcome.tokens == reply, f"reply {i}"
    return outcomes


def test_earlier_turns_change_nothing(subject: Subject):
    temperature = 1.0
    outcomes = in_turns(Duet(Padded(subject.target)), subject, temperature)
    cached = [outcome.started.n_cached for outcome in outcomes]
    lengths = [len(ask.prompt) + len(reply) for ask, reply in subject.conversation(temperature)]
    # llama.cpp does not tell how much of the window is left beside a state
    has_mark = subject.target.can_copy and subject.name != "lfm2-window"
    mark = len(SYSTEM) + N_OWN - TURN_MARGIN if has_mark else 0
    left = lengths[1] - 30 if subject.target.can_trim else mark
    after = left if subject.target.can_copy else lengths[1] - 1
    assert cached[2:] == [lengths[0] - 1, after, left]


@at_temperatures
def test_begun_replies_go_on(subject: Subject, temperature: float):
    for ask, reply in subject.conversation(temperature)[:2]:
        for n in (1, len(reply) // 2, len(reply) - 1):
            [outcome] = Duet(Padded(subject.target)).run(replace(ask, begun=reply[:n]))
            assert outcome.tokens == reply[n:]


@at_temperatures
def test_a_drafter_changes_nothing(subject: Subject, temperature: float):
    outcomes = in_turns(Duet(Padded(subject.target), drafter=subject.draft), subject, temperature)
    accepted, drafted = counts(outcomes, "drafter")
    can_guess = subject.target.can_copy or subject.target.n_tail
    assert 20 < accepted < drafted or (not can_guess and drafted == 0)


def test_inner_draft_changes_nothing(subject: Subject):
    if not subject.draft.can_trim:
        pytest.skip("it drafts in a process of its own only")
    outcomes = in_turns(Duet(Padded(subject.target), inline=subject.draft), subject, 1.0)
    accepted, drafted = counts(outcomes)
    assert 20 < accepted < drafted


@at_temperatures
def test_lookups_change_nothing(subject: Subject, temperature: float):
    if not (subject.target.can_copy or subject.target.n_tail):
        pytest.skip("nothing is guessed")
    duet = Duet(Padded(subject.target), lookup=True)
    in_turns(duet, subject, temperature)
    again, expected = zip(*subject.conversation(temperature), strict=True)
    outcomes = duet.run(*again)
    assert tuple(outcome.tokens for outcome in outcomes) == expected
    assert counts(outcomes)[0] > 40


def with_tiers(subject: Subject, snapshots: Snapshots) -> Duet:
    """Return a lead with room in the KV cache for the running conversation and one more."""
    padded = Padded(subject.target)
    spare = padded.can_copy and subject.name != STREAMS
    padded.n_seqs = 2 * (3 if spare else 1)  # each with shadows or checkpoints
    return Duet(padded, drafter=subject.draft, snapshots=snapshots, n_slots=1)


def test_host_memory_changes_nothing(subject: Subject):
    temperature = 1.0
    snapshots = Snapshots(memory_bytes=1 << 30, partial=subject.target.can_trim)
    duet = with_tiers(subject, snapshots)
    outcomes: list[Outcome] = []
    for ask, reply in subject.conversation(temperature):
        other = _ask(tuple(range(len(outcomes) + 200, 300)), 0.0, 0, 1)
        duet.run(other, replace(other, prompt=other.prompt[::-1]))  # which push out the one before
        outcomes += duet.run(ask)
        assert outcomes[-1].tokens == reply
    assert snapshots.counters().hits >= 2
    lengths = [len(ask.prompt) + len(reply) for ask, reply in subject.conversation(temperature)]
    assert [one.started.n_cached for one in outcomes[2:4]] == [length - 1 for length in lengths[:2]]


def test_disk_and_restart_change_nothing(subject: Subject, tmp_path: Path):
    temperature, cached = 1.0, list[int]()
    for turn in range(2):
        disk = DiskTier(tmp_path, budget_bytes=1 << 30, fingerprint=subject.name)
        snapshots = Snapshots(memory_bytes=0, disk=disk, partial=subject.target.can_trim)
        duet = with_tiers(subject, snapshots)
        for ask, reply in subject.conversation(temperature)[2 * turn : 2 * turn + 2]:
            [outcome] = duet.run(ask)
            assert outcome.tokens == reply
            cached.append(outcome.started.n_cached)
        duet.engine.residence.save_all(20.0)
        snapshots.close()
    lengths = [len(ask.prompt) + len(reply) for ask, reply in subject.conversation(temperature)]
    assert cached[2:] == [length - 1 for length in lengths[:2]]
