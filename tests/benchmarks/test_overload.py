"""Many more clients than slots, over the toy model."""

from __future__ import annotations

import asyncio
import os
from urllib.parse import urlsplit

import uvloop

from benchmarks.overload import PAGES, Storm, loop_seconds, rage, visit
from tests.fake_backend import FakeBackend, FakeModel
from tests.http_lead import serving


async def both(port: int) -> tuple[Storm, Storm]:
    return await asyncio.gather(
        rage(port, n_clients=40, seconds=1.0, n_tokens=6), visit(port, os.getpid(), 1.0)
    )


def test_of_too_many_clients_each_is_answered_wholly_or_refused_and_told_when_to_come_back():
    backend = FakeBackend(FakeModel(eog_rate=0.0), n_ctx=4096, n_cells=16384, step_s=0.002)
    with serving(backend, n_slots=2, max_queued=6) as lead:
        storm, visits = uvloop.run(both(urlsplit(lead.url).port or 0))
        lead.until_idle()
    assert not storm.wrong
    assert not visits.wrong
    assert storm.refused
    assert {kind for kind, *_ in storm.answered} >= {"short"}
    assert all(visits.pages[path] for path in PAGES)


def test_the_kernel_counts_what_a_thread_computes():
    computed, waited = loop_seconds(os.getpid())
    assert computed > 0
    assert waited >= 0
