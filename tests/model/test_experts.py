"""What is known of experts in the host's memory before and after a model is loaded."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from server.flags import read
from server.llama.library import LoadedModel
from server.llama.tensors import on_host, tensors
from server.settings import LeadSettings
from tests.model.kinds import N_EMBD, N_EXPERTS, N_FFN_EXPERT, N_LAYERS, QWEN3_MOE
from tests.model.random_models import write

pytestmark = pytest.mark.model

LAYER_BYTES = 3 * 4 * N_EXPERTS * N_EMBD * N_FFN_EXPERT  # experts of a layer as F32


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("experts") / "mixture.gguf"
    write(path, QWEN3_MOE)
    return path


def test_host_bytes_are_known_early(path: Path):
    def bytes_of(*flags: str) -> int:
        return on_host(path, read(LeadSettings, flags).weights.places)

    assert bytes_of() == 0
    assert bytes_of("-ncmoe", "1") == LAYER_BYTES
    assert bytes_of("-cmoe") == bytes_of("-ncmoe", "99") == N_LAYERS * LAYER_BYTES
    assert bytes_of("-cmoe", "-ot", "_up_exps=CUDA0") == N_LAYERS * LAYER_BYTES * 2 // 3
    assert bytes_of("-ot", ".=CPU") == sum(tensors(path).values()) < path.stat().st_size


def test_unmatched_pattern_is_reported(path: Path, caplog: pytest.LogCaptureFixture):
    weights = read(LeadSettings, ["-ot", "no_such=CPU,up_exps=CPU"]).weights
    with closing(LoadedModel(path, weights)), caplog.at_level("WARNING"):
        pass
    assert "matches no_such: check --override-tensor" in caplog.text
    assert "up_exps" not in caplog.text
