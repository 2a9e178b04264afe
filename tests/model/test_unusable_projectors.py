"""Projectors that do not fit a model: refused if the settings name them, left out if they were found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from server.errors import StartupError
from server.lead.seeing import load_found_pictures
from server.llama.llamacpp import LlamaBackend
from server.settings import LeadSettings
from tests.model.conftest import open_exact
from tests.model.kinds import QWEN3
from tests.model.projectors import PROJECTORS, write_projector
from tests.model.random_models import write
from tests.model.test_pictures import mtmd, open_projector

pytestmark = pytest.mark.model
assert mtmd  # a fixture


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory, mtmd: Any) -> Iterator[LlamaBackend]:
    path = tmp_path_factory.mktemp("target") / "model.gguf"
    write(path, QWEN3)
    with closing(open_exact(path)) as one:
        yield one


def test_unusable_found_projectors_are_left_out(target: LlamaBackend, caplog: pytest.LogCaptureFixture):
    named = LeadSettings.model_validate({"mmproj": target.options.model_path, "mmproj_auto": False})
    with ExitStack() as stack, pytest.raises(StartupError, match="is it for this model"):
        load_found_pictures(stack, named, target)
    found = named.model_copy(update={"mmproj_auto": True})
    with ExitStack() as stack:
        assert load_found_pictures(stack, found, target) is None
    assert "is it for this model" in caplog.text


def test_missing_tokens_are_refused(target: LlamaBackend, tmp_path: Path):
    path = tmp_path / "projector.gguf"
    write_projector(path, PROJECTORS["idefics3"])
    with pytest.raises(StartupError, match="lacks tokens"):
        open_projector(path, target)
