"""Decodes with and without flash attention, timed on the bundled model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from server.llama import attention_times
from server.llama.attention_times import (
    CHECKED,
    DEPTHS,
    KINDS,
    PASSES,
    ROUND,
    ROUNDS,
    WIDTHS,
    AttentionTimes,
    Kind,
    first_s,
    measure,
)
from server.llama.context import LlamaContext
from server.llama.library import LoadedModel
from server.llama.llamacpp import LlamaBackend
from server.llama.options import LlamaOptions, Override, Weights
from server.settings import BUNDLED_MODEL
from tests.model.kinds import KINDS as KINDS_OF_MODELS
from tests.model.random_models import write
from tests.model.test_kinds import STATEFUL

pytestmark = pytest.mark.model

OPTIONS = LlamaOptions(BUNDLED_MODEL, 4096, 4)


@pytest.fixture(scope="module")
def model() -> Iterator[LoadedModel]:
    with closing(LoadedModel(BUNDLED_MODEL, Weights())) as one:
        yield one


def shape(times: AttentionTimes | None) -> tuple[int, ...]:
    assert times is not None
    assert all(s > 0 for kind in KINDS for row in times.seconds[kind] for s in row)
    return tuple(len(row) for kind in KINDS for row in times.seconds[kind])


def test_every_width_is_timed_at_every_depth(model: LoadedModel):
    assert shape(measure(model, OPTIONS, budget_s=60)) == (len(DEPTHS),) * len(KINDS) * len(WIDTHS)


def test_deep_contexts_hold_as_many_tokens(model: LoadedModel, monkeypatch: pytest.MonkeyPatch):
    """Otherwise they would be timed as short ones."""
    lengths: list[int] = []

    def shortest_s(contexts: Sequence[LlamaContext], depth: int, width: int, n_rounds: int) -> list[float]:
        lengths.extend(context.length(0) for context in contexts)
        assert [context.length(1) for context in contexts] == [0] * len(KINDS)
        return [1.0] * len(contexts)

    monkeypatch.setattr(attention_times, "_shortest_s", shortest_s)
    assert measure(model, OPTIONS, budget_s=60) is not None
    a_pass = [depth for depth in DEPTHS for _ in range(len(KINDS) * len(WIDTHS))]
    assert lengths == PASSES * a_pass


def test_a_slower_model_has_one_pass(model: LoadedModel, monkeypatch: pytest.MonkeyPatch):
    passes: list[int] = []

    def decode_s(context: LlamaContext, position: int, width: int, *, keep: bool = False) -> float:
        return 0.01

    def a_pass(
        contexts: Sequence[LlamaContext], depths: Sequence[int], n_rounds: int
    ) -> list[list[list[float]]]:
        passes.append(n_rounds)
        return [[[1.0] * len(contexts) for _ in WIDTHS] for _ in depths]

    monkeypatch.setattr(attention_times, "_decode_s", decode_s)
    monkeypatch.setattr(attention_times, "_pass", a_pass)
    for budget_s in (PASSES * ROUNDS * ROUND * 0.0101, PASSES * ROUNDS * ROUND * 0.0099):
        passes.clear()
        assert measure(model, OPTIONS, budget_s=budget_s) is not None
        assert passes == [ROUNDS] * (PASSES if budget_s > PASSES * ROUNDS * ROUND * 0.01 else 1)


@pytest.mark.parametrize("name", KINDS_OF_MODELS)
def test_stateless_models_are_measured(name: str, tmp_path: Path):
    path = tmp_path / "model.gguf"
    write(path, KINDS_OF_MODELS[name])
    with closing(LoadedModel(path, Weights())) as one:
        found = measure(one, replace(OPTIONS, model_path=path), budget_s=60)
    assert (found is None) == (name in STATEFUL)


def test_short_context_is_measured_partly(tmp_path: Path):
    path = tmp_path / "model.gguf"
    write(path, KINDS_OF_MODELS["gemma3"])
    overrides = (Override("gemma3.context_length", 300),)
    with closing(LoadedModel(path, Weights(overrides=overrides))) as one:
        times = measure(one, replace(OPTIONS, model_path=path), budget_s=60)
    assert shape(times) == (2,) * len(KINDS) * len(WIDTHS)


def test_first_decodes_are_timed_separately(model: LoadedModel):
    seconds = first_s(model, OPTIONS)
    assert len(seconds) == len(CHECKED)
    assert min(seconds) > 0


def test_a_slow_model_is_not_measured(model: LoadedModel):
    assert measure(model, OPTIONS, budget_s=0.0) is None


@pytest.mark.parametrize("kind", KINDS)
def test_lead_keeps_its_choice(kind: Kind):
    def choose(model: LoadedModel, options: LlamaOptions) -> Kind:
        return kind

    with closing(LlamaBackend(OPTIONS, choose)) as backend:
        assert backend.options.flash_attention == kind
    with closing(LlamaBackend(replace(OPTIONS, flash_attention="off"), choose)) as backend:
        assert backend.options.flash_attention == "off"
    with closing(LlamaBackend(OPTIONS)) as backend:
        assert backend.options.flash_attention == "off", "nobody chooses"
