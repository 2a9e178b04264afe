"""Which attention a lead on a CPU chooses, by what was measured and by the steps that it has had."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from server.engine.meter import StepKind
from server.lead import attention
from server.lead.attention import (
    ASSUMED,
    BEFORE,
    MIN_GAIN,
    MOST_STEPS,
    UNMEASURED,
    AttentionChoice,
    chosen,
    merged,
)
from server.llama.attention_times import DEPTHS, WIDTHS, AttentionTimes, Kind
from server.llama.library import LoadedModel
from server.llama.options import LlamaOptions

NO_MODEL = cast(LoadedModel, None)
SHORT, LONG = StepKind(1, 96, 96), StepKind(1, 3072, 3072)


def times(on_ms: tuple[float, float, float], off_ms: tuple[float, float, float]) -> AttentionTimes:
    """Return attention times in milliseconds at the three depths, equal for all rows."""
    return AttentionTimes({"on": [on_ms] * len(WIDTHS), "off": [off_ms] * len(WIDTHS)})


SINGLE_MS = 10.0
MIXED = times((9, 10, 14), (SINGLE_MS, 10.5, 11))


def kind_of(of: AttentionTimes, steps: dict[StepKind, float], now: Kind | None = None) -> Kind:
    return chosen(of, steps, now, shared=True)[0]


def test_unmeasured_times_are_interpolated():
    one = AttentionTimes({"on": [[1, 2, 8], [4, 5, 11], [16, 17, 23]], "off": [[0] * 3] * 3})
    assert one.step_s("on", 1, 64) == one.step_s("on", 1, 10) == 1
    assert one.step_s("on", 1, 160) == 1.5
    assert one.step_s("on", 2, 64) == 2
    assert one.step_s("on", 4, 2 * DEPTHS[-1] - DEPTHS[-2]) == 17
    assert one.step_s("on", 28, 64) == 28


def test_a_short_context_has_few_depths():
    one = AttentionTimes({"on": [[3], [3], [3]], "off": [[2], [2], [2]]})
    assert kind_of(one, {}) == "off"
    assert one.step_s("on", 4, 5000) == 3


@pytest.mark.parametrize(("on_ms", "expected"), [(9, "on"), (11, "off")])
def test_first_choice_suits_short_conversations(on_ms: float, expected: Kind):
    assert kind_of(times((on_ms, on_ms, 12), (10, 10, 10)), {}) == expected


def test_later_choice_suits_actual_steps():
    assert kind_of(MIXED, {}) == "on"
    assert kind_of(MIXED, {LONG: BEFORE}) == "off"
    assert kind_of(MIXED, {LONG: BEFORE, SHORT: 100 * BEFORE}) == "on"


def test_a_change_must_be_worth_it():
    step = ASSUMED[0]
    barely = times((10, 10, 10), (10.1, 10.1, 10.1))
    assert kind_of(barely, {step: 1}) == "on"
    kind, gain = chosen(barely, {step: 1}, "off", shared=True)
    assert (kind, gain < 0) == ("off", True)
    slow = 10 / (1 - 2 * MIN_GAIN)
    assert kind_of(times((10, 10, 10), (slow, slow, slow)), {step: 1}, "off") == "on"


def test_shared_cells_count_without_flash():
    beside = {StepKind(1, 6144, 96): 100.0 * BEFORE}
    few = times((10, 11, 12), (9, 9.5, 20))
    assert chosen(few, beside, None, shared=True)[0] == "on"
    assert chosen(few, beside, None, shared=False)[0] == "off"


def test_idle_conversation_is_assumed_first():
    alone_quicker = times((10, 10, 10), (9, 9, 13))
    assert chosen(alone_quicker, {}, None, shared=False)[0] == "off"
    assert chosen(alone_quicker, {}, None, shared=True)[0] == "on"


def test_older_steps_give_way_to_later_ones():
    assert merged({SHORT: 10, LONG: 1}, {LONG: 5}) == {SHORT: 10, LONG: 6}
    both = merged({SHORT: MOST_STEPS}, {LONG: MOST_STEPS / 4})
    assert both == {SHORT: 0.75 * MOST_STEPS, LONG: MOST_STEPS / 4}
    assert merged({SHORT: 10}, {LONG: 2 * MOST_STEPS})[SHORT] == 0


class Measured:
    """A stand-in for measure() that counts its calls."""

    def __init__(self, found: AttentionTimes | None) -> None:
        self.found, self.n = found, 0

    def __call__(self, model: LoadedModel, options: LlamaOptions, **_: object) -> AttentionTimes | None:
        self.n += 1
        return self.found


def started(options: LlamaOptions) -> Kind:
    """Return what a start chooses, which looks again while idle."""
    choice = AttentionChoice()
    kind = choice(NO_MODEL, options)
    choice.measure_again(NO_MODEL, options)
    return kind


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LlamaOptions:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(attention, "first_s", lambda *_: [SINGLE_MS, SINGLE_MS])  # pyright: ignore
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    return LlamaOptions(tmp_path / "model.gguf", 1024, 4)


def test_steps_are_remembered_between_starts(options: LlamaOptions, monkeypatch: pytest.MonkeyPatch):
    measured = Measured(MIXED)
    monkeypatch.setattr(attention, "measure", measured)
    assert started(options) == UNMEASURED
    first = AttentionChoice()
    assert first(NO_MODEL, options) == "on"
    first.kinds[LONG] += 10 * BEFORE
    first.keep()
    assert started(options) == "off"
    third = AttentionChoice()
    third.kinds[SHORT] += 1000 * BEFORE
    assert third(NO_MODEL, options) == "off", "its own steps are for the next start"
    third.keep()
    assert started(options) == "on"
    assert measured.n == 1


def test_no_start_measures(options: LlamaOptions, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(attention, "measure")
    monkeypatch.delattr(attention, "first_s")
    assert AttentionChoice()(NO_MODEL, options) == UNMEASURED


def test_busy_measurement_is_repeated(options: LlamaOptions, monkeypatch: pytest.MonkeyPatch):
    """Only wide decodes took longer, as beside other work on their cores."""
    calm, slow = Measured(MIXED), [20.0, 21.0, 22.0]
    single = [SINGLE_MS, 10.5, 11.0]
    busy = AttentionTimes({"on": [[30.0, 31.0, 50.0]] * 3, "off": [single, slow, slow]})
    monkeypatch.setattr(attention, "measure", Measured(busy))
    started(options)
    monkeypatch.setattr(attention, "measure", calm)
    assert [started(options) for _ in range(4)] == ["off", "on", "on", "on"]
    assert calm.n == 1


def test_unmeasurable_model_keeps_its_kind(options: LlamaOptions, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(attention, "measure", Measured(None))
    assert [started(options) for _ in range(2)] == [UNMEASURED] * 2
    monkeypatch.setattr(attention, "measure", Measured(times((9, 9, 9), (10, 10, 10))))
    assert [started(options) for _ in range(2)] == [UNMEASURED, "on"]
