"""Models that rank: what they are given, and their scores."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest

from server.errors import StartupError
from server.lead.loading import load_embedder, load_ranker, load_target
from server.llama.embedder import LlamaEmbedder
from server.llama.options import LlamaOptions
from server.settings import LeadSettings
from tests.model.kinds import BERT_RANKER, QWEN3, QWEN3_RANKER, Kind
from tests.model.random_models import write

QUERY = "Machine learning is"
DOCUMENTS = ["A machine", "Learning is", "Paris, capitale de la France", "x" * 300]


@pytest.mark.parametrize(
    ("kind", "n_tokens", "scores"),
    [
        (BERT_RANKER, 198, [0.2807, 0.2952, 0.3298, 0.3421]),
        (QWEN3_RANKER, 231, [0.1378, 0.1827, 0.5317, 0.5772]),
    ],
    ids=["bert", "qwen3"],
)
def test_scores_are_those_of_llama_server(kind: Kind, n_tokens: int, scores: list[float], tmp_path: Path):
    """The expected scores come from llama.cpp 0.3.36's server with this file."""
    path = tmp_path / "ranker.gguf"
    write(path, kind)
    with closing(LlamaEmbedder(LlamaOptions(path, 2048, 1, n_threads=1), pooling="rank")) as ranker:
        pairs = [ranker.pair(QUERY, document) for document in DOCUMENTS]
        assert sum(map(len, pairs)) == n_tokens
        together = ranker.embed(pairs)
        assert together[:, 0] == pytest.approx(scores, abs=2e-4)
        assert np.allclose(ranker.embed(pairs[1:2]), together[1:2], atol=2e-4)


def settings(model: Path, **flags: object) -> LeadSettings:
    return LeadSettings(model=model, parallel=1, ctx_size=256, threads=1, **flags)  # pyright: ignore[reportArgumentType]


def test_ranking_follows_file_or_flag(tmp_path: Path):
    plain, ranking = tmp_path / "plain.gguf", tmp_path / "ranking.gguf"
    write(plain, QWEN3)
    write(ranking, QWEN3_RANKER)
    with ExitStack() as stack:
        target = stack.enter_context(closing(load_target(settings(plain), 1)))
        assert load_ranker(stack, settings(plain), target) is None
        own = load_ranker(stack, settings(plain, reranking=True), target)
        assert own is not None
        assert own.embed([own.pair("a", "b")]).shape == (1, 1)
        other = load_ranker(stack, settings(plain, rerank_model=ranking), target)
        assert other is not None
        assert other.path == ranking
        with pytest.raises(StartupError, match="--rerank-model"):
            load_embedder(stack, settings(plain, embedding_model=ranking), target)
        ranks = stack.enter_context(closing(load_target(settings(ranking), 1)))
        assert load_ranker(stack, settings(ranking), ranks) is not None
        assert load_embedder(stack, settings(ranking), ranks) is None
