"""What guesses for a real draft model: it changes no draft, is right now and then, and has to fit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path

import pytest

from benchmarks.inflate import convert
from benchmarks.with_block import BLOCK, join
from drafters.cascade import Cascade
from drafters.drafter_settings import BUNDLED_MODEL as DRAFT
from drafters.drafter_settings import DEFAULT_MODEL, DrafterSettings
from drafters.kinds import assemble
from drafters.worker import Worker
from server.drafting.draft_session import GREEDY
from server.drafting.model_drafter import ModelDrafter
from server.drafting.own_drafts import OwnDrafts
from server.errors import StartupError
from server.flags import read
from server.llama.backend import Backend
from server.llama.eagle3 import LlamaHead
from server.llama.llamacpp import LlamaBackend
from server.llama.mtp import LlamaBlock
from server.llama.options import Weights
from server.llama.with_block import WithBlock
from server.sampling.params import SamplingParams
from server.settings import BUNDLED_MODEL
from server.speculation.sources.block_draft import BlockDraft
from server.speculation.sources.draft_model import DraftModel
from server.speculation.sources.inline import InlineModel
from server.speculation.wire.messages import Commit, Draft, Message, Open, chain_next, chain_start
from server.speculation.wire.presence import Presence, vocabulary_card
from tests.drafters.scene import Lead
from tests.memory_bus import MemoryPool
from tests.model.conftest import open_exact

pytestmark = pytest.mark.model

QUESTION = (
    "<|im_start|>user\nHow would you explain generators to a colleague?<|im_end|>\n<|im_start|>assistant\n"
)
HEAD = BLOCK.with_name("duo-tiny-eagle3-q8_0.gguf")
WARM = SamplingParams(temperature=0.8, seed=3)


@pytest.fixture(params=["draft model", "mtp", "eagle3"])
def guesser(
    request: pytest.FixtureRequest, f32_pair: tuple[Path, Path], tmp_path: Path
) -> Iterator[tuple[LlamaBackend, Backend, InlineModel]]:
    """Yield the draft model as it is, as a guesser needs it, and its guesser."""
    target, draft = f32_pair
    ticks = count()
    with ExitStack() as stack:
        if request.param == "mtp":
            join(BUNDLED_MODEL, BLOCK, tmp_path / "joined.gguf")
            convert(tmp_path / "joined.gguf", target := tmp_path / "f32.gguf")
        model = stack.enter_context(closing(open_exact(target, weights=Weights(mtp=request.param == "mtp"))))
        if request.param == "draft model":
            smaller = stack.enter_context(closing(open_exact(draft)))
            yield model, model, DraftModel(smaller, clock=lambda: next(ticks) * 1e-6)
            return
        if request.param == "mtp":
            block = stack.enter_context(closing(LlamaBlock(model, 4)))
        else:
            convert(HEAD, head := tmp_path / "head.gguf")
            block = stack.enter_context(closing(LlamaHead(model, head)))
        with_block = WithBlock(model, block)
        yield model, with_block, BlockDraft(with_block, clock=lambda: next(ticks) * 1e-6)


def drafted(backend: Backend, own: OwnDrafts, sampling: SamplingParams, n_steps: int = 12) -> list[list[int]]:
    """Return the longest text that is guessed before each step of a lead, which errs now and then."""
    ticks = count()
    drafter = ModelDrafter(backend, own=own, clock=lambda: next(ticks) * 1e-3)
    for seq in range(backend.n_seqs):
        backend.trim(seq, 0)
    pool, lead, card = MemoryPool(), Lead(), vocabulary_card(backend.vocab)
    here, there = (Presence(name, name, "toy", "0", card, 4) for name in ("lead", "drafter"))
    bus, other = pool.bus(here), pool.bus(there)
    worker = Worker(other, there, drafter, clock=lambda: 0.0)
    bus.start(lead)
    other.start(worker)

    def settle(message: Message) -> None:
        bus.send("drafter", message)
        n_before = -1
        while pool.pump() or worker.n_drafted != n_before:
            n_before = worker.n_drafted
            worker.turn(wait=False)

    prompt = tuple(backend.vocab.tokenize(QUESTION, special=True))
    chain, reply, found = chain_start(prompt), list[int](), list[list[int]]()
    known = {chain: reply}
    settle(Open("lead", 1, chain, 24, sampling, prompt))
    for step in range(n_steps):
        for draft in (message for message in lead.heard if isinstance(message, Draft)):
            at, text = draft.chain, known[draft.chain]
            for token in draft.tokens:
                at, text = chain_next(at, token), [*text, token]
                known[at] = text
        found.append(max((text for text in known.values() if text[: len(reply)] == reply), key=len))
        new = found[-1][len(reply) :][: 1 + step % 5] or [100]
        if step % 4 == 3:
            new[-1] = 100 + step
        base = len(prompt) + len(reply)
        for token in new:
            chain = chain_next(chain, token)
        reply = known[chain] = reply + new
        settle(Commit(1, base, chain, tuple(new)))
    return found


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
def test_own_drafts_change_no_draft(
    guesser: tuple[LlamaBackend, Backend, InlineModel], sampling: SamplingParams
):
    model, backend, inline = guesser
    inline.rehearse()
    cascade = Cascade(inline, {})
    assert drafted(backend, cascade, sampling) == drafted(model, OwnDrafts(), sampling)
    assert cascade.n_right > 10


@pytest.mark.parametrize(("draft", "what"), [(DRAFT, "duo-tiny-draft"), (HEAD, "EAGLE-3")])
def test_file_says_what_drafts(draft: Path, what: str, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", logger="duo.drafter")
    with ExitStack() as stack:
        settings = read(DrafterSettings, ["--model", str(BUNDLED_MODEL), "--draft-model", str(draft)])
        drafter = assemble(settings, stack).drafter
        assert isinstance(drafter, ModelDrafter)
        assert isinstance(drafter.own, Cascade)
    assert what in caplog.text


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--draft-model", str(DEFAULT_MODEL)], "vocabulary sizes differ"),
        (["--draft-model", "missing.gguf"], "no model file at missing.gguf"),
        (["--kind", "lookup", "--draft-model", str(DRAFT)], "--kind lookup has no model"),
    ],
)
def test_unusable_draft_model_is_refused(flags: list[str], why: str):
    with ExitStack() as stack, pytest.raises(StartupError) as refused:
        assemble(read(DrafterSettings, ["--model", str(BUNDLED_MODEL), *flags]), stack)
    assert why in refused.value.message
