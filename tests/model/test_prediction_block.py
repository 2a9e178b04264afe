"""A target with a prediction block or an EAGLE-3 head has the text that it has without.

On every way that its KV cache may take.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, cast

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from benchmarks.inflate import convert
from benchmarks.with_block import BLOCK, join
from server.cache.snapshots import Snapshots
from server.engine import endings
from server.engine.request import GenerationRequest
from server.engine.scheduler import Limits
from server.engine.session import Session
from server.engine.state import EngineState
from server.errors import StartupError
from server.grammar.compiler import Compiler
from server.llama import tails
from server.llama.backend import Batch
from server.llama.eagle3 import LlamaHead
from server.llama.library import LoadedModel
from server.llama.llamacpp import LlamaBackend, LlamaOptions
from server.llama.mtp import LlamaBlock
from server.llama.options import Weights
from server.llama.with_block import Path as BlockPath
from server.llama.with_block import WithBlock
from server.sampling.params import SamplingParams
from server.settings import BUNDLED_MODEL
from server.speculation.policy import Policy
from server.speculation.sources.block_draft import BlockDraft
from server.speculation.speculator import Speculator
from server.speculation.step_times import StepTimes
from tests.fake_backend import FakeBackend
from tests.model.conftest import open_exact
from tests.model.kinds import QWEN35_BLOCK
from tests.model.live import Padded
from tests.model.random_models import write
from tests.support import Harness, Outcome

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

AnyArray: TypeAlias = npt.NDArray[Any]

EAGLE3_HEAD = BLOCK.with_name("duo-tiny-eagle3-q8_0.gguf")

QUESTIONS = (
    "How would you explain generators to a colleague?",
    "Write a context manager that measures time.",
    "Give an introduction to hash tables.",
    "What is recursion?",
)
STYLE = "Be brief and clear, and give an example where one helps."


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("block") / "joined.gguf"
    join(BUNDLED_MODEL, BLOCK, path)
    return path


@pytest.fixture(scope="module")
def f32(joined: Path) -> Path:
    path = joined.with_name("f32.gguf")
    convert(joined, path)
    return path


@pytest.fixture(scope="module", params=["mtp", "eagle3"])
def target(request: pytest.FixtureRequest, f32: Path, f32_pair: tuple[Path, Path]) -> Iterator[LlamaBackend]:
    with_block = request.param == "mtp"
    with closing(open_exact(f32 if with_block else f32_pair[0], weights=Weights(mtp=with_block))) as backend:
        yield backend


@pytest.fixture(scope="module")
def model(target: LlamaBackend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WithBlock]:
    if target.model.n_blocks:
        block = LlamaBlock(target)
    else:
        head = tmp_path_factory.mktemp("head") / "f32.gguf"
        convert(EAGLE3_HEAD, head)
        block = LlamaHead(target, head)
    with closing(block):
        yield WithBlock(target, block)


class Unmeasured(StepTimes):
    """Step times that learn nothing: otherwise they would decide on padding, and so on last bits."""

    def observe(self, rows: int, n_cells: int, seconds: float) -> None:
        pass


def harness(
    model: WithBlock | LlamaBackend,
    n_slots: int,
    snapshots: Snapshots | None = None,
    *,
    n_seqs: int = 16,
    n_ctx: int = 4096,
    n_cells: int = 4095,
) -> Harness:
    """Return an engine with an empty cache that verifies all guesses of the block.

    The other parameters are its limits.
    """
    for seq in range(model.n_seqs):
        model.trim(seq, 0)
    leaves = 3 if model.can_trim else 1
    again = not model.can_trim
    policy = Policy(leaves=leaves, lookup=False, gate=False, again=again, n_tail=model.n_tail)
    inline = BlockDraft(model, most=3) if isinstance(model, WithBlock) else None
    proposer = Speculator(policy, inline=inline, times=Unmeasured(policy.max_rows))
    padded = Padded(model)
    padded.n_seqs, padded.n_ctx = min(n_seqs, padded.n_seqs), min(n_ctx, padded.n_ctx)
    padded.n_cells = min(n_cells, padded.n_cells)
    limits = Limits(n_batch=padded.n_batch, n_chunk=32, draft_max=3)
    one = Harness(cast(FakeBackend, padded), proposer, n_slots=n_slots, limits=limits, snapshots=snapshots)
    one.engine.residence.move_costs.token_s.value = 1.0  # loading a snapshot pays
    return one


def asks(backend: LlamaBackend, n: int, temperature: float) -> list[GenerationRequest]:
    return [
        GenerationRequest(
            backend.vocab.tokenize(
                f"<|im_start|>user\n{question} {STYLE}<|im_end|>\n<|im_start|>assistant\n",
                special=True,
            ),
            SamplingParams(temperature, top_k=0, top_p=1.0, min_p=0.0, seed=100 + i),
            40,
        )
        for i, question in enumerate(QUESTIONS[:n])
    ]


def converse(one: Harness, first: Sequence[GenerationRequest], *, at_once: bool = True) -> list[Outcome]:
    """Run three turns of all conversations; at_once: the replies of a turn together."""

    def run(asks: Sequence[GenerationRequest]) -> list[Outcome]:
        return one.run(*asks) if at_once else [outcome for ask in asks for outcome in one.run(ask)]

    outcomes = run(first)
    for _ in range(2):
        following = [
            GenerationRequest([*ask.prompt, *outcome.tokens, 10], ask.sampling, 25)
            for ask, outcome in zip(first, outcomes[-len(first) :], strict=True)
        ]
        outcomes += run(following)
        first = following
    return outcomes


def said(outcomes: Sequence[Outcome]) -> list[tuple[int, ...]]:
    return [outcome.tokens for outcome in outcomes]


def assert_right_and_wrong(outcomes: Sequence[Outcome]) -> None:
    counts = [one for outcome in outcomes for one in outcome.finished.stats.drafters.values()]
    right, all_of_them = sum(c.accepted for c in counts), sum(c.drafted for c in counts)
    assert 20 < right < all_of_them, f"{right} of {all_of_them} were right"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("n", [1, 4])
def test_texts_are_equal(n: int, temperature: float, target: LlamaBackend, model: WithBlock):
    first = asks(target, n, temperature)
    plain = converse(harness(target, 4), first)
    n_before = model.n_unknown
    drafted = converse(harness(model, 4), first)
    assert said(drafted) == said(plain)
    assert_right_and_wrong(drafted)
    assert model.n_unknown - n_before <= n  # a prompt may begin in the middle of an earlier one
    assert all(outcome.started.n_cached > 20 for outcome in drafted[n:])


def test_block_returns_with_its_conversation(target: LlamaBackend, model: WithBlock):
    first = asks(target, 4, 1.0)
    plain = converse(harness(target, 1), first, at_once=False)
    snapshots = Snapshots(memory_bytes=1 << 30)
    one = harness(model, 1, snapshots, n_seqs=6)  # two conversations of three sequences
    drafted = converse(one, first, at_once=False)
    assert said(drafted) == said(plain)
    assert snapshots.counters().hits >= 2
    assert_right_and_wrong(drafted)


def test_block_survives_a_restart(target: LlamaBackend, model: WithBlock):
    [ask, *_] = asks(target, 1, 1.0)
    snapshots = Snapshots(memory_bytes=1 << 30)
    before = harness(model, 1, snapshots)
    [outcome] = before.run(ask)
    before.engine.residence.save_all(10.0)
    turn = GenerationRequest([*ask.prompt, *outcome.tokens, 10], ask.sampling, 40)
    anew = WithBlock(target, model.block)
    [drafted] = harness(anew, 1, snapshots).run(turn)
    [plain] = harness(target, 1).run(turn)
    assert snapshots.counters().hits == 1
    assert drafted.started.n_cached > len(ask.prompt)
    assert said([drafted]) == said([plain])
    assert_right_and_wrong([outcome, drafted])
    assert anew.n_unknown == 0


def test_replies_that_are_preempted_go_on(
    target: LlamaBackend, model: WithBlock, monkeypatch: pytest.MonkeyPatch
):
    first = [replace(ask, max_tokens=70) for ask in asks(target, 2, 1.0)]
    plain = harness(target, 2).run(*first)
    preempt, preempted = endings.preempt, list[int]()

    def counted(state: EngineState, session: Session) -> None:
        preempted.append(session.id)
        preempt(state, session)

    monkeypatch.setattr(endings, "preempt", counted)
    drafted = harness(model, 2, n_cells=150).run(*first)
    assert preempted
    assert said(drafted) == said(plain)
    assert_right_and_wrong(drafted)


@pytest.mark.parametrize(("n", "n_keep"), [(1, 8), (4, 0)])
def test_replies_may_be_longer_than_the_context(n: int, n_keep: int, target: LlamaBackend, model: WithBlock):
    first = [replace(ask, max_tokens=200, n_keep=n_keep) for ask in asks(target, n, 0.0)]
    plain = harness(target, 4, n_ctx=96).run(*first)
    assert all(outcome.finished.stats.truncated for outcome in plain)
    drafted = harness(model, 4, n_ctx=96).run(*first)
    assert said(drafted) == said(plain)
    assert_right_and_wrong(drafted)
    assert not model.failed


def test_grammars_and_stops_inside_accepted_runs(target: LlamaBackend, model: WithBlock):
    """A stop cuts what a step committed beyond it; the next turn begins there."""
    [ask, other] = asks(target, 2, 0.0)
    grammar = Compiler(target.vocab).gbnf('root ::= [A-Z] [a-z ,]{60,200} "."')
    constrained = replace(other, constraint=grammar)
    [plain, said_so] = harness(target, 2).run(ask, constrained)
    one = harness(model, 2)
    [id, _] = one.submit(ask, constrained)
    n_stop = cut_short(one, id)
    while one.engine.step():
        pass
    drafted, ruled = one.outcomes.values()
    assert drafted.tokens[:n_stop] == plain.tokens[:n_stop]
    assert ruled.tokens == said_so.tokens
    turn = replace(ask, prompt=[*ask.prompt, *plain.tokens[:n_stop], 10])
    again = one.run(turn)
    assert said(again) == said(harness(target, 1).run(turn))
    assert_right_and_wrong([ruled, *again])


def cut_short(one: Harness, id: int) -> int:
    """Cancel this reply with one token of a step that committed several, and return how many it keeps."""
    tokens = one.outcomes[id].tokens
    while len(tokens) < 5 or len(one.outcomes[id].tokens) < len(tokens) + 2:
        tokens = one.outcomes[id].tokens
        assert one.engine.step()
    one.engine.cancel(id, keep=len(tokens) + 1)
    return len(tokens) + 1


def test_block_is_fed_as_trained(target: LlamaBackend, model: WithBlock):
    """Fed with the row before each token it agrees with the target's next choice.

    With other rows it does not.
    """
    [ask] = asks(target, 1, 0.0)
    [outcome] = harness(target, 1).run(ask)
    text = [*ask.prompt, *outcome.tokens]
    for seq in range(model.n_seqs):
        model.trim(seq, 0)
    batch = Batch()
    batch.extend(0, 0, ask.prompt, 1)
    model.decode(batch)
    waiting = model._waiting[0]  # pyright: ignore[reportPrivateUsage]
    right = [0, 0]
    for i in range(len(ask.prompt), len(text) - 1):
        row = waiting.rows[-1]
        for wrong in (True, False):
            waiting.rows[-1] = np.zeros_like(row) if wrong else row
            logits, _ = model.guess([BlockPath(0, text[i], None)], 0)
            right[wrong] += int(logits[0].argmax()) == text[i + 1]
        batch = Batch()
        batch.extend(0, i, [text[i]], 1)
        model.decode(batch)
    assert right[False] > 0.7 * len(outcome.tokens)
    assert right[True] < right[False]


def test_waiting_rows_join_the_guess(target: LlamaBackend, model: WithBlock):
    """Several conversations with more and fewer waiting rows each guess as if they were alone."""
    texts = [ask.prompt for ask in asks(target, 3, 0.0)]

    def guessed(seqs: Sequence[int], n_late: int) -> list[AnyArray]:
        paths: list[BlockPath] = []
        for seq in seqs:
            model.trim(seq, 0)
            for tokens in (texts[seq][: -n_late - 1], texts[seq][-n_late - 1 : -1]):
                batch = Batch()
                batch.extend(seq, model.length(seq), tokens, 1)
                model.decode(batch)
                if len(tokens) > n_late:
                    model.save(seq)  # for which the block evaluates what waits
            paths.append(BlockPath(seq, texts[seq][-1], None))
        return [row.copy() for row in model.guess(paths, 0)[0]]

    alone = [guessed([seq], 1)[0] for seq in range(3)]
    together = guessed(range(3), 7)
    for one, other in zip(alone, together, strict=True):
        assert np.abs(one - other).max() < 0.01


def rewritten(joined: Path, path: Path, change: Callable[[gguf.ReaderTensor], AnyArray | None]) -> Path:
    """Write the file with each tensor's data changed by `change`; None drops the tensor."""
    source = gguf.GGUFReader(joined)
    with closing(gguf.GGUFWriter(path, "mimo2")) as writer:
        for name, field in source.fields.items():
            if not name.startswith(("GGUF.", "general.architecture")):
                inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
                writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)
        for tensor in source.tensors:
            if (data := change(tensor)) is not None:
                writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    return path


def test_wrong_block_width_gives_advice(joined: Path, tmp_path: Path):
    def narrowed(tensor: gguf.ReaderTensor) -> AnyArray:
        data = np.array(tensor.data)
        return data[: len(data) // 2] if tensor.name.endswith("nextn.eh_proj.weight") else data

    narrow = rewritten(joined, tmp_path / "narrow.gguf", narrowed)
    with pytest.raises(StartupError, match="its prediction block is of another model: convert") as raised:
        LoadedModel(narrow, Weights(mtp=True))
    assert "\n" not in raised.value.message


def test_build_without_hidden_rows_advises(target: LlamaBackend, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_cpp_ext", None)
    with pytest.raises(StartupError, match=r"install .*, or say --mtp off") as raised:
        LlamaBlock(target)
    assert "\n" not in raised.value.message


def test_announced_block_may_be_missing(joined: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    def kept(tensor: gguf.ReaderTensor) -> AnyArray | None:
        return None if tensor.name.startswith("blk.8.") else np.array(tensor.data)

    bare = rewritten(joined, tmp_path / "bare.gguf", kept)
    options = LlamaOptions(bare, n_cells=256, n_seqs=2, weights=Weights(mtp=True))
    with closing(LlamaBackend(options)) as backend:
        assert backend.model.n_blocks == 0
    assert "announces prediction blocks but was converted without" in caplog.text


@pytest.mark.parametrize("n_tail", [0, 3])
def test_a_hybrid_model_has_a_block(n_tail: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Random weights guess with the session's noise, so that some guesses are right at temperature 1."""
    monkeypatch.setattr(tails, "SHARE", 100.0)  # the weights are smaller than the states
    path = tmp_path / "qwen35.gguf"
    write(path, QWEN35_BLOCK)
    sampling = SamplingParams(1.0, top_k=0, top_p=1.0, min_p=0.0, seed=5)
    first = [GenerationRequest([100 + i, *range(200, 290)], sampling, 40) for i in range(3)]
    with closing(open_exact(path, n_tail=n_tail, weights=Weights(mtp=True))) as hybrid:
        assert hybrid.n_tail == n_tail
        plain = converse(harness(hybrid, 4), first)
        with closing(LlamaBlock(hybrid)) as block:
            drafted = converse(harness(WithBlock(hybrid, block), 4), first)
    assert said(drafted) == said(plain)
    assert_right_and_wrong(drafted)
