"""Who is compared with whom, and the ratios over single replies and over all."""

from __future__ import annotations

import pytest

from benchmarks.client import Reply
from benchmarks.contest import Heat
from benchmarks.prompts import Prompt
from benchmarks.verdicts import kinds_table, pairs_of, verdict, verdicts_table

NAMES = ["llama-server", "duo", "llama-server, draft 4", "llama-server, ngram-mod", "duo, drafts"]


def reply(rate: float, *, first_ms: float = 100.0, n_tokens: int = 101, text: str = "text") -> Reply:
    ended = 10 + first_ms / 1000 + (n_tokens - 1) / rate
    return Reply(text, n_tokens, first_ms, client_rate=rate, asked=10.0, ended=ended)


def heat(id: str, *replies: Reply) -> Heat:
    return Heat(Prompt(id, []), list(replies))


def test_ratios_of_replies_and_in_all():
    heats = [
        heat("fact-01", reply(200.0), reply(100.0)),
        heat("code-01", reply(80.0), reply(100.0)),
        heat("chat-01", reply(100.0), reply(100.0)),
    ]
    found = verdict(heats, 0, 1)
    assert (found.median, found.slowest, found.n_slow, found.n_rated) == (1.0, 0.8, 1, 3)
    assert found.in_all == pytest.approx(3.0 / (0.5 + 1.25 + 1.0))
    assert found.with_prompts == pytest.approx((3.0 + 0.3) / (0.5 + 1.25 + 1.0 + 0.3))


def test_short_replies_are_not_rated():
    short = heat("fact-01", reply(10.0, n_tokens=5), reply(100.0, text="other"))
    found = verdict([short, heat("fact-02", reply(50.0), reply(50.0))], 0, 1)
    assert (found.in_all, found.slowest, found.n_rated) == (1.0, 1.0, 1)
    assert (found.n_equal, found.n_replies) == (1, 2)


def test_documents_count_apart():
    slow, fast = reply(100.0, first_ms=400.0), reply(100.0, first_ms=100.0)
    found = verdict([heat("document-01", slow, fast), *[heat("fact-01", fast, fast)] * 2], 0, 1)
    assert found.first_text == 1.0
    assert found.first_text_of_documents == 4.0


def test_rival_is_the_fastest_drafting_server():
    rates = [100.0, 100.0, 150.0, 120.0, 180.0]
    heats = [heat("fact-01", *(reply(rate) for rate in rates))]
    pairs = [(NAMES[i], NAMES[j]) for i, j in pairs_of(NAMES, heats)]
    assert pairs == [
        ("duo", "llama-server"),
        ("duo, drafts", "llama-server"),
        ("duo, drafts", "llama-server, draft 4"),
        ("duo, drafts", "duo"),
    ]


def test_table_has_memory_and_kinds():
    heats = [heat("fact-01", reply(100.0), reply(120.0)), heat("code-01", reply(100.0), reply(300.0))]
    table = verdicts_table(["llama-server", "duo"], heats, [200 << 20, 230 << 20]).splitlines()
    assert table[-1].startswith("| duo : llama-server | 1.71 |")
    assert table[-1].endswith("| 1.15 | 2 of 2 |")
    assert kinds_table(["llama-server", "duo"], heats).splitlines()[-1] == "| duo | 120.0 | 300.0 |"


def test_no_heat_is_refused():
    with pytest.raises(ValueError, match="no prompt was answered"):
        verdict([], 0, 1)
