"""Whatever is sent: requests that schemathesis makes of openapi.yaml, valid ones, and ones that are wrong.

The same ones in every run. Every reply, and every event of a stream, is also held against the contract by
witness.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi import checks as openapi

from server.api.services import Embedding, ModelCard
from server.cache.named import NamedFiles
from server.llama.embedding_worker import EmbeddingWorker
from tests.fake_backend import FakeBackend, FakeModel
from tests.http_lead import Lead, serving
from tests.toy_embedder import FakeEmbedder

SCHEMA = schemathesis.openapi.from_path(Path(__file__).parents[2] / "openapi.yaml")
N_EXAMPLES = int(os.environ.get("DUO_EXAMPLES", "40"))
"""Of each operation, besides those that go through its fields and bounds one by one. More: `make fuzz`."""

NOT_OUR_FAULT = {501, 503}
"""It cannot do that with the options it was started with, or not now."""
TELLS_IN_ITS_REPLY = "POST /rpc"
"""JSON-RPC answers a malformed call with 200 and an error object."""
TAKES_NO_BODY = "action=erase"
"""Nor looks at one."""
CHECKS: list[Any] = [
    openapi.status_code_conformance,
    openapi.content_type_conformance,
    openapi.response_headers_conformance,
    openapi.unsupported_method,
]


@pytest.fixture(scope="module")
def lead(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lead]:
    """Yield a lead with every feature and short replies."""
    embedder, ranker = FakeEmbedder(), FakeEmbedder(ranks=True, n_embd=1)
    with closing(EmbeddingWorker(embedder)) as worker, closing(EmbeddingWorker(ranker)) as ranking:
        with serving(
            FakeBackend(FakeModel(seed=3, eog_rate=0.2), n_ctx=256),
            embedding=Embedding(worker, ModelCard("toy-embedder", 1, 64, 1000, "a toy")),
            reranking=Embedding(ranking, ModelCard("toy-ranker", 1, 64, 1000, "a toy")),
            slot_files=NamedFiles(tmp_path_factory.mktemp("slots"), budget_bytes=1 << 20, fingerprint="toy"),
        ) as one:
            yield one
            one.until_idle()
        embedder.close()
        ranker.close()


@pytest.fixture
def session() -> Iterator[requests.Session]:
    """Yield one connection for an operation's examples, which does not look for proxies each time."""
    with requests.Session() as one:
        one.trust_env = False
        yield one


def coherent(body: Any) -> Any:
    """Return the body without members that contradict others or name something missing.

    Such a body would be refused before anything else is looked at.
    """
    if not isinstance(body, dict):
        return body
    kept: dict[str, Any] = dict(body)  # pyright: ignore[reportUnknownArgumentType]
    for name in ("tool_choice", "previous_response_id", "n_predict", "samplers", "model"):
        kept.pop(name, None)
    if not kept.get("logprobs"):
        kept.pop("top_logprobs", None)
    if "prompt" in kept and not kept["prompt"]:
        kept["prompt"] = "Once"
    return kept


@SCHEMA.parametrize()  # pyright: ignore[reportUntypedFunctionDecorator]
@settings(
    max_examples=N_EXAMPLES,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,  # the session may be shared
    ],
)
def test_answers_fit_the_contract(case: schemathesis.Case[Any], lead: Lead, session: requests.Session):
    rpc = case.operation.label == TELLS_IN_ITS_REPLY
    if case.meta and case.meta.generation.mode == GenerationMode.POSITIVE and not rpc:
        case.body = coherent(case.body)
    response = case.call(base_url=lead.url, session=session)
    checks = list(CHECKS)
    if not rpc and TAKES_NO_BODY not in str(response.request.url):
        checks.append(openapi.negative_data_rejection)
    if "text/event-stream; charset=utf-8" not in response.headers.get("content-type", ()):
        checks.append(openapi.response_schema_conformance)
    case.validate_response(response, checks=checks)
    assert response.status_code < 500 or response.status_code in NOT_OUR_FAULT, response.text
