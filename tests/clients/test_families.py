"""Required calls of the bundled model in every family's syntax.

Clients read them and send what the tool returns; nothing is evaluated twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from server.formats.families import FAMILIES, Family
from server.llama.llamacpp import LlamaBackend, LlamaOptions
from server.settings import BUNDLED_MODEL
from tests.clients.family_templates import template_of
from tests.clients.two_turns import by_langchain, by_the_sdk, speaking

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def backend() -> Iterator[LlamaBackend]:
    with closing(LlamaBackend(LlamaOptions(BUNDLED_MODEL, n_cells=4096, n_seqs=16, n_threads=1))) as one:
        yield one


MOST_ANEW = 16  # tokens of the history that the second turn evaluates
KINDS = {(family.calls and family.calls.arguments, bool(family.channels)): family for family in FAMILIES}
"""A family of each kind of arguments, with channels or without: LangChain reads what the SDK reads."""


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_two_turns(family: Family, backend: LlamaBackend, clients: dict[str, Any]):
    with speaking(backend, template_of(family)) as lead:
        template = lead.services.template
        assert template.style.family.name == family.name
        assert (template.capabilities.calls, template.capabilities.results) == (True, True)
        assert by_the_sdk(lead) <= MOST_ANEW
        if family in KINDS.values():
            by_langchain(lead.url, clients)
