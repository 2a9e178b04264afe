"""A lead with a KV cache for each conversation (--no-kv-unified)."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from server.flags import read
from server.lead.loading import leaves_of, load_target
from server.settings import BUNDLED_MODEL, LeadSettings
from tests.model.kinds import KINDS
from tests.model.random_models import write

pytestmark = pytest.mark.model


def settings(model: Path, *, kv_unified: bool) -> LeadSettings:
    apart = [] if kv_unified else ["--no-kv-unified"]
    return read(LeadSettings, ["--model", str(model), "--parallel", "2", "--ctx-size", "1024", *apart])


@pytest.mark.parametrize(
    ("kv_unified", "n_seqs", "n_ctx", "leaves"), [(True, 9, 1024, 3), (False, 2, 512, 1)]
)
def test_streams_share_cells_with_chains(kv_unified: bool, n_seqs: int, n_ctx: int, leaves: int):
    asked = settings(BUNDLED_MODEL, kv_unified=kv_unified)
    with closing(load_target(asked, 1)) as backend:
        assert (backend.n_seqs, backend.n_cells, backend.n_ctx) == (n_seqs, 1024, n_ctx)
        assert (backend.can_share, leaves_of(asked, backend)) == (kv_unified, leaves)


@pytest.mark.parametrize(("kind", "leaves"), [("gemma3", 3), ("lfm2", 1)])
def test_windows_and_states_use_one_cache(kind: str, leaves: int, tmp_path: Path):
    path = tmp_path / "model.gguf"
    write(path, KINDS[kind])
    asked = settings(path, kv_unified=False)
    with closing(load_target(asked, 1)) as backend:
        assert (backend.n_seqs, backend.n_ctx, backend.options.n_streams) == (6, 512, 0)
        assert (backend.can_share, leaves_of(asked, backend)) == (True, leaves)
