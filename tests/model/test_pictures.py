"""Pictures and sounds in prompts: rows of real projectors change a text as in llama.cpp, whatever is cached.

Projectors and models have random weights. F32 weights and cache, and never a batch of one row, as in
test_invariance.py.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from server.cache.snapshots import Snapshots
from server.engine.engine import Engine
from server.engine.events import Committed, Event
from server.engine.proposer import Proposer
from server.engine.request import GenerationRequest, Speculation
from server.engine.scheduler import Limits
from server.errors import InvalidRequestError, StartupError
from server.llama.backend import PICTURE_IDS, Batch, Embeddings, Logits, ReadsRows
from server.llama.library import physical_rows
from server.llama.llamacpp import LlamaBackend
from server.pictures.grid_positions import GridPositions
from server.pictures.picture import Picture, PicturePart
from server.pictures.pixels import MAX_RATIO, Pixels
from server.pictures.projector import Projector
from server.pictures.registry import Pictures
from server.pictures.sounds import MIN_SECONDS, Sound
from server.pictures.vocabulary import PictureVocabulary
from server.pictures.with_pictures import WithPictures
from server.sampling.logprobs import TokenLogprobs
from tests.checks import check_engine
from tests.model.conftest import open_exact
from tests.model.duet import Duet, counts
from tests.model.kinds import (
    GEMMA3,
    QWEN3,
)
from tests.model.kinds import KINDS as ALL_KINDS
from tests.model.live import Padded
from tests.model.projectors import (
    GEMMA,
    IDEFICS,
    LLAVA,
    PROJECTORS,
    QWEN2_VL,
    QWEN_VL,
    ULTRAVOX,
    write_projector,
)
from tests.model.random_models import words_added, write
from tests.support import OracleProposer, Outcome, request

pytestmark = pytest.mark.model

BEFORE, AFTER = "Look at this picture: ", " What does it show?"
WORDS = words_added("<fake_token_around_image>", "<global-img>")
VISION = words_added("<|vision_start|>", "<|vision_end|>")
KINDS = {
    "llava": (QWEN3, LLAVA),
    "gemma3": (GEMMA3, GEMMA),
    "idefics3": (QWEN3._replace(fields={**QWEN3.fields, **WORDS}), IDEFICS),
    "qwenvl": (QWEN2_VL._replace(fields={**QWEN2_VL.fields, **VISION}), QWEN_VL),
    "ultravox": (QWEN3, ULTRAVOX),
    "sounds with M-RoPE": (QWEN2_VL, ULTRAVOX),
    "pictures and sounds": (GEMMA3, GEMMA, ULTRAVOX),
}
N_TOKENS = 40
RATE = 16_000  # of samples, as Ultravox reads them


@pytest.fixture(scope="module")
def mtmd() -> Any:
    try:
        return importlib.import_module("llama_cpp.mtmd_cpp")
    except (OSError, RuntimeError) as error:
        pytest.skip(f"this llama.cpp was built without libmtmd ({error})")


class PaddedReader(Padded):
    """A Padded that reads pictures."""

    def __init__(self, backend: LlamaBackend) -> None:
        super().__init__(backend)
        self._reader = backend

    def read_rows(self, batch: Batch, given: Embeddings) -> None:
        self._reader.read_rows(batch, given)


@dataclass
class Scene:
    """A model with its projector."""

    target: LlamaBackend
    draft: LlamaBackend
    projector: Projector
    pictures: Pictures

    @property
    def vocab(self) -> PictureVocabulary:
        return cast(PictureVocabulary, self.target.vocab)

    def backend(self) -> WithPictures:
        """Return the model with an empty KV cache."""
        for seq in range(self.target.n_seqs):
            self.target.trim(seq, 0)
        return WithPictures(self.reading(PaddedReader(self.target)), self.pictures)

    def reading(self, backend: ReadsRows) -> ReadsRows:
        return GridPositions(backend) if self.projector.has_grids else backend

    def given(self, seed: int) -> Pixels | Sound:
        """Return a picture or a sound; where the model reads both, a sound for even seeds."""
        hears = self.projector.hears and not (self.projector.sees and seed % 2)
        return sound(seed) if hears else pixels(seed)

    def picture(self, seed: int) -> Picture:
        return self.pictures.of(self.given(seed), lambda n: None)

    def ask(self, seed: int, before: str = BEFORE, after: str = AFTER) -> GenerationRequest:
        """Return a request about the picture of this seed."""
        text = before + self.picture(seed).word + after
        return self.asking(self.vocab.tokenize(text, special=True), seed)

    def asking(self, tokens: Sequence[int], seed: int) -> GenerationRequest:
        asked = request(tokens, temperature=1.0, seed=seed, max_tokens=N_TOKENS, stop_tokens=frozenset())
        return replace(asked, pictures=self.pictures.spans(tokens))

    def go_on(self, asked: GenerationRequest, reply: Sequence[int]) -> GenerationRequest:
        """Return the next turn, which has another picture."""
        more = self.vocab.tokenize(f" And {self.picture(9).word} here?", special=True)
        return self.asking([*asked.prompt, *reply, *more], 5)

    def alone(self, asked: GenerationRequest) -> tuple[int, ...]:
        [outcome] = Duet(self.backend()).run(asked)
        return outcome.tokens


def pixels(seed: int, width: int = 150, height: int = 100) -> Pixels:
    values = np.random.default_rng(seed).integers(0, 256, 3 * width * height, dtype=np.uint8)
    return Pixels(width, height, values.tobytes())


def sound(seed: int, seconds: float = 2.0) -> Sound:
    values = np.random.default_rng(seed).uniform(-0.5, 0.5, int(RATE * seconds))
    return Sound(RATE, values.astype(np.float32).tobytes())


@pytest.fixture(scope="module", params=KINDS)
def scene(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, mtmd: Any
) -> Iterator[Scene]:
    name: str = request.param
    folder = tmp_path_factory.mktemp("pictures")
    model, draft, projector = (folder / f"{what}.gguf" for what in ("model", "draft", "projector"))
    kind, *projectors = KINDS[name]
    write(model, kind)
    write(draft, kind, noise=0.02)
    write_projector(projector, *projectors)
    with closing(open_exact(model)) as target, closing(open_exact(draft)) as other:
        with closing(open_projector(projector, target)) as encoder:
            pictures = Pictures(encoder)
            target.vocab = PictureVocabulary(target.vocab, pictures)
            yield Scene(target, other, encoder, pictures)


def open_projector(path: Path, target: LlamaBackend, most_rows: int | None = None) -> Projector:
    most_rows = most_rows or physical_rows(target.handle)
    return Projector(path, target.model, n_threads=1, gpu=False, most_rows=most_rows)


def own_logits(scene: Scene, *seeds: int) -> Logits:
    batch = Batch()
    batch.extend(0, 0, prompt_of(scene, *seeds), 1)
    scene.backend()  # empties the KV cache
    return WithPictures(scene.reading(scene.target), scene.pictures).decode(batch)[0].copy()


def prompt_of(scene: Scene, *seeds: int) -> list[int]:
    text = "".join(BEFORE + scene.picture(seed).word + AFTER for seed in seeds)
    return scene.vocab.tokenize(text, special=True)


@pytest.mark.parametrize("seeds", [(1,), (1, 2)])
def test_logits_equal_llama_cpps(scene: Scene, mtmd: Any, seeds: tuple[int, ...]):
    own = own_logits(scene, *seeds)
    scene.backend()
    text = f"{BEFORE}{mtmd.mtmd_default_marker().decode()}{AFTER}".encode() * len(seeds)
    given = mtmd.mtmd_input_text(text, len(text), False, True)
    chunks, shown = mtmd.mtmd_input_chunks_init(), [bitmap_of(mtmd, scene.given(seed)) for seed in seeds]
    bitmaps = (mtmd.mtmd_bitmap_p_ctypes * len(shown))(*shown)
    handle: Any = scene.projector._handle  # pyright: ignore[reportPrivateUsage]
    n = ctypes.c_int32()
    assert mtmd.mtmd_tokenize(handle, chunks, ctypes.byref(given), bitmaps, len(shown)) == 0
    where = handle, scene.target.handle, chunks, 0, 0, scene.target.n_batch, True
    assert mtmd.mtmd_helper_eval_chunks(*where, ctypes.byref(n)) == 0
    for bitmap in shown:
        mtmd.mtmd_bitmap_free(bitmap)
    mtmd.mtmd_input_chunks_free(chunks)
    n_lost = sum(len(part) - part.grid.n_positions for part in grids(scene, seeds) if part.grid)
    assert n.value == len(prompt_of(scene, *seeds)) - n_lost
    assert (n_lost > 0) == (scene.projector.has_grids and scene.projector.sees)
    theirs = scene.target._last_logits(1)[0]  # pyright: ignore[reportPrivateUsage]
    assert (own == theirs).all()
    assert (own != own_logits(scene, *(seed + 2 for seed in seeds))).any(), "the pictures count"


def grids(scene: Scene, seeds: Sequence[int]) -> list[PicturePart]:
    return [part for seed in seeds for part in scene.picture(seed).parts]


def bitmap_of(mtmd: Any, shown: Pixels | Sound) -> Any:
    if isinstance(shown, Sound):
        samples = (ctypes.c_float * (len(shown.data) // 4)).from_buffer_copy(shown.data)
        return mtmd.mtmd_bitmap_init_from_audio(len(samples), samples)
    data = (ctypes.c_uint8 * len(shown.data)).from_buffer_copy(shown.data)
    return mtmd.mtmd_bitmap_init(shown.width, shown.height, data)


def test_rows_of_gemma_see_each_other(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    spans = [span for one in scene.ask(1).pictures for span in one.whole]
    read, together = scene.target.read_rows, own_logits(scene, 1)

    def read_in_order(batch: Batch, given: Embeddings) -> None:
        read(batch, replace(given, together=False))

    monkeypatch.setattr(scene.target, "read_rows", read_in_order)
    in_order = own_logits(scene, 1)
    assert (together != in_order).any() == bool(spans)


def test_next_turns_of_two_sessions(scene: Scene):
    check_next_turns(scene)


def check_next_turns(scene: Scene) -> None:
    """Check that two conversations at once say in two turns what each says alone."""
    first = [scene.ask(1), scene.ask(2)]
    replies = [scene.alone(one) for one in first]
    later = [scene.go_on(one, reply) for one, reply in zip(first, replies, strict=True)]
    expected = [scene.alone(one) for one in later]
    duet = Duet(scene.backend())
    assert [outcome.tokens for outcome in duet.run(*first)] == replies
    outcomes = duet.run(*later)
    assert [outcome.tokens for outcome in outcomes] == expected
    cached = [outcome.started.n_cached for outcome in outcomes]
    assert cached == [len(one.prompt) + N_TOKENS - 1 for one in first]


def test_saved_conversations_keep_pictures(scene: Scene):
    first, other = scene.ask(1), scene.ask(2)
    reply = scene.alone(first)
    later = scene.go_on(first, reply)
    expected = scene.alone(later)
    duet = Duet(scene.backend(), snapshots=Snapshots(memory_bytes=1 << 28))
    duet.run(first)
    while duet.engine.residence.evict():
        pass
    duet.run(other)
    while duet.engine.residence.evict():
        pass
    [outcome] = duet.run(later)
    assert outcome.tokens == expected
    assert outcome.started.n_cached == len(first.prompt) + N_TOKENS - 1


@pytest.mark.parametrize("wrong_every", [1, 2, 3])
def test_wrong_guesses_change_nothing(scene: Scene, wrong_every: int):
    asks = [scene.ask(1), scene.ask(2), scene.asking(range(300, 340), 3)]
    replies = [scene.alone(one) for one in asks]
    blank = scene.vocab.tokenize(" ", special=False)[-1]
    texts = [
        [*(token if token < PICTURE_IDS else blank for token in one.prompt), *reply]
        for one, reply in zip(asks, replies, strict=True)
    ]
    oracle = OracleProposer(texts, wrong_every=wrong_every)
    assert [outcome.tokens for outcome in run_with(oracle, scene, asks)] == replies
    assert oracle.proposed > oracle.accepted
    assert (oracle.accepted > 0) == (wrong_every > 1)


def test_width_stable_replies_change_in_no_bit(scene: Scene):
    stable = Speculation(exactness="width-stable")
    asked = replace(scene.ask(1), speculation=stable, n_logprobs=3)
    [alone] = Duet(scene.backend()).run(asked)
    blank = scene.vocab.tokenize(" ", special=False)[-1]
    shown = [token if token < PICTURE_IDS else blank for token in asked.prompt]
    oracle = OracleProposer([[*shown, *alone.tokens]], wrong_every=3)
    [drafted] = run_with(oracle, scene, [asked])
    assert oracle.accepted > 0
    assert logprobs_of(drafted) == logprobs_of(alone)


def test_begun_replies_go_on_in_every_bit(scene: Scene):
    asked = replace(scene.ask(1), speculation=Speculation(exactness="width-stable"), n_logprobs=3)
    [whole] = Duet(scene.backend()).run(asked)
    for n in (1, N_TOKENS // 2):
        [rest] = Duet(scene.backend()).run(replace(asked, begun=whole.tokens[:n]))
        assert rest.tokens == whole.tokens[n:]
        assert logprobs_of(rest) == logprobs_of(whole)[n:]


def logprobs_of(outcome: Outcome) -> list[TokenLogprobs]:
    return [one for event in outcome.events if isinstance(event, Committed) for one in event.logprobs]


def run_with(proposer: Proposer, scene: Scene, asks: Sequence[GenerationRequest]) -> list[Outcome]:
    backend, outcomes = scene.backend(), [Outcome() for _ in asks]

    def emit(id: int, event: Event) -> None:
        outcomes[id].events.append(event)

    engine = Engine(backend, proposer, emit, limits=Limits(n_batch=backend.n_batch, n_chunk=16))
    for id, one in enumerate(asks):
        engine.submit(id, one)
    while engine.step():
        pass
    check_engine(engine)
    return outcomes


@pytest.mark.parametrize("inline", [False, True])
def test_a_draft_model_changes_nothing(scene: Scene, inline: bool):
    asks = [scene.ask(1), scene.ask(2)]
    replies = [scene.alone(one) for one in asks]
    duet = Duet(
        scene.backend(), inline=scene.draft if inline else None, drafter=None if inline else scene.draft
    )
    outcomes = duet.run(*asks)
    assert [outcome.tokens for outcome in outcomes] == replies
    accepted, drafted = counts(outcomes)
    assert 0 < accepted < drafted


def test_odd_sizes_are_encoded(scene: Scene):
    sizes = ((1, 1), (MAX_RATIO * 3, 3), (1, MAX_RATIO), (1500, 700))
    given: list[Pixels | Sound] = [pixels(3, *size) for size in sizes] if scene.projector.sees else []
    if scene.projector.hears:
        given += [sound(3, seconds) for seconds in (MIN_SECONDS, 31.0)]
    for one in given:
        picture = scene.pictures.of(one, lambda n: None)
        assert all(np.isfinite(part.rows).all() for part in picture.parts if part.rows is not None)


def test_large_pictures_are_refused_before_encoding(scene: Scene):
    counts: list[int] = []

    def check(n: int) -> None:
        counts.append(n)
        raise InvalidRequestError("too many")

    with pytest.raises(InvalidRequestError, match="too many"):
        scene.pictures.of(scene.given(77), check)
    assert counts == [len(scene.ask(1).pictures[0].picture.ids)]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]


def test_unusable_projectors_are_refused(scene: Scene, tmp_path: Path):
    with pytest.raises(StartupError, match="no projector at"):
        open_projector(tmp_path / "none.gguf", scene.target)
    with pytest.raises(StartupError, match="is it for this model"):
        open_projector(scene.target.options.model_path, scene.target)
    if any(one.whole for one in scene.ask(1).pictures):
        path = tmp_path / "projector.gguf"
        write_projector(path, PROJECTORS["gemma3"])
        with pytest.raises(StartupError, match="--ubatch-size 16"):
            open_projector(path, scene.target, most_rows=15)


@pytest.mark.parametrize(
    ("model", "projector", "n_streams"),
    [("lfm2", "llava", 0), ("gemma4", "gemma3", 0), ("gemma3", "gemma3", 4)],
)
def test_other_kinds_see_pictures(mtmd: Any, tmp_path: Path, model: str, projector: str, n_streams: int):
    """Read pictures with a state, with embeddings for each layer, and with a KV cache for each sequence."""
    path, other = tmp_path / "model.gguf", tmp_path / "projector.gguf"
    write(path, ALL_KINDS[model])
    write_projector(other, PROJECTORS[projector])
    with closing(open_exact(path, n_streams)) as target, closing(open_projector(other, target)) as encoder:
        pictures = Pictures(encoder)
        target.vocab = PictureVocabulary(target.vocab, pictures)
        check_next_turns(Scene(target, target, encoder, pictures))
