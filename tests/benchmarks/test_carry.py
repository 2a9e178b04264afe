"""What one Redis carries: the formula, the tapes, and a real server under what is on them. No figure of these
tests depends on the machine."""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import carry
from benchmarks.capacity import Lead, Load, Traffic, Usage, shares, usage
from benchmarks.carry import Taped
from benchmarks.crowd import INBOXES, Crowd, Press, play, score
from benchmarks.tapes import Tape, between, kind_of, record
from benchmarks.temperature import write
from server.local.embedded import EmbeddedServer
from server.speculation.wire.messages import Close, Commit, Draft, Open, Want, encode
from server.speculation.wire.redis_client import connect
from tests.benchmarks.test_clocked import GREEDY, MODEL, N_TOKENS, PROMPTS, backend
from tests.fake_backend import FakeBackend

INFO: dict[str, Any] = {
    "used_cpu_user": 1.5,
    "used_cpu_sys": 0.25,
    "total_net_input_bytes": 7000,
    "total_net_output_bytes": 5000,
    "cmdstat_xadd": {"calls": 30, "usec": 90},
    "cmdstat_xread": {"calls": 20, "usec": 90},
}


@pytest.fixture(scope="module")
def tape() -> Tape:
    known = write(FakeBackend(MODEL, n_seqs=2), PROMPTS[:4], GREEDY, N_TOKENS)
    return record(backend(), known, r=8.0, tt_us=30_000, at_once=2)


# -- the formula ----------------------------------------


def test_usage_is_what_info_says():
    found = usage(INFO)
    assert (found.cpu_s, found.bytes_in, found.bytes_out) == (1.75, 7000, 5000)
    assert (found.n_added, found.n_reads) == (30, 20)
    assert found.since(found) == Usage(0.0, 0, 0, 0, 0)


@given(
    st.floats(0.0, 1e-2), st.floats(0.0, 1e-4), st.floats(1e-6, 1e-4), st.floats(1.0, 1e5), st.integers(1, 3)
)
def test_one_lead_more_would_be_too_much(
    member: float, pair: float, message: float, messages: float, n_drafters: int
):
    load = Load(0.01, member, pair, message)
    lead = Lead(1.0, messages, 60.0, n_drafters)
    n = load.most_leads(lead, 1.0)
    assert load.of(n, lead) <= 1.0 + 1e-9
    assert load.of(n + 1, lead) > 1.0 - 1e-9


def test_bytes_count_where_they_are_the_budget():
    lead = Lead(tokens=100.0, messages=10.0, size=80.0, n_drafters=1)
    assert Load(0.0, 0.0, 0.0, 20.0, 1.0).most_leads(lead, 1e5) == 100
    assert Load(0.0, 0.0, 0.0, 20.0).most_leads(lead, 1e5) == 500


def test_who_needs_more_than_there_is_carries_none():
    assert Load(2.0, 0.1, 0.1, 0.1).most_leads(Lead(1.0, 1.0, 1.0, 1), 1.0) == 0
    assert Load(0.0, 0.0, 0.0, 1.0).most_leads(Lead(1.0, 2.0, 1.0, 1), 1.0) == 0


def test_shares_are_found_again():
    true = Load(1e-3, 6e-5, 2e-5, 0.0)
    seen = [(n, d, true.base + true.member * (n + d) + true.pair * n * d) for n, d in carry.CROWDS]
    assert shares(seen) == pytest.approx((true.base, true.member, true.pair))


def test_no_share_is_below_zero_whatever_was_seen():
    found = shares([(1, 1, 5.0), (6, 6, 4.0), (12, 12, 3.0), (4, 12, 3.5)])
    assert min(found) >= 0
    assert found[0] == pytest.approx((5.0 + 4.0 + 3.0 + 3.5) / 4)


def test_a_longer_prompt_makes_larger_messages_and_more_drafters_more_of_them():
    traffic = Traffic(
        tokens=100.0, token_messages=3.0, token_bytes=180.0, reply_messages=2.0, reply_bytes=100.0
    )
    short, long = (traffic.lead(n_prompt, 50, links=1, n_drafters=1) for n_prompt in (0, 1000))
    assert short.messages == long.messages == pytest.approx(100 * 3.04)
    assert long.size - short.size == pytest.approx(4 * 1000 / 50 / 3.04)
    assert traffic.lead(0, 50, links=3, n_drafters=3).messages == pytest.approx(3 * short.messages)


# -- tapes ----------------------------------------


def test_a_tape_has_what_a_session_says(tape: Tape):
    assert tape.n_replies == 4
    assert tape.n_tokens == 4 * N_TOKENS
    assert set(tape.counts) == {"Open", "Commit", "Draft", "Close"}
    assert tape.counts["Open"] == tape.counts["Close"] == tape.n_replies
    told = sum(len(one.message.tokens) for one in tape.said if isinstance(one.message, Commit))
    assert 0 < told <= tape.n_tokens
    assert all(one.to_lead == isinstance(one.message, Draft | Want) for one in tape.said)
    assert [one.at_s for one in tape.said] == sorted(one.at_s for one in tape.said)
    assert tape.sizes.total() == sum(len(encode(one.message)) for one in tape.said)


def test_traffic_adds_up_to_the_tape(tape: Tape):
    traffic = tape.traffic
    n_told = sum(len(one.message.tokens) for one in tape.said if isinstance(one.message, Open))
    n_messages = traffic.token_messages * tape.n_tokens + traffic.reply_messages * tape.n_replies
    n_bytes = traffic.token_bytes * tape.n_tokens + traffic.reply_bytes * tape.n_replies + 4 * n_told
    assert n_messages == pytest.approx(tape.counts.total())
    assert n_bytes == pytest.approx(tape.sizes.total())
    assert traffic.tokens == tape.rate > tape.n_tokens / tape.seconds


def test_a_slower_target_says_less_in_a_second(tape: Tape):
    known = write(FakeBackend(MODEL, n_seqs=2), PROMPTS[:4], GREEDY, N_TOKENS)
    slower = record(backend(), known, r=8.0, tt_us=120_000, at_once=2)
    assert slower.counts == pytest.approx(tape.counts, rel=0.1)
    assert slower.seconds == pytest.approx(4 * tape.seconds, rel=0.05)
    assert slower.rate == pytest.approx(tape.rate / 4, rel=0.05)


def test_messages_bear_the_names_of_those_who_say_them(tape: Tape):
    for one in tape.said:
        renamed = between(one.message, "that-lead", "that-drafter")
        assert kind_of(renamed) == kind_of(one.message)
        assert getattr(renamed, "lead", "that-lead") == "that-lead"
        assert getattr(renamed, "drafter", "that-drafter") == "that-drafter"
    assert between(Close("one", 1, keep=True), "other", "") == Close("other", 1, keep=True)


# -- a real server ----------------------------------------


@pytest.mark.redis
def test_all_that_is_said_arrives(tape: Tape):
    n = 200
    with EmbeddedServer() as server, closing(connect(server.url)) as client:
        with Crowd(server.url, 2, 2, n_vocab=5000) as crowd:
            cues = score(tape, crowd, links=2)
            assert len(cues) == 4 * tape.counts.total()
            played = play(client, crowd, cues, rate=1000, seconds=n / 1000)
        assert played.due == played.counts.sent == played.counts.received == n
        assert played.counts.dropped == 0
        assert played.spent.n_added == n
        assert played.spent.bytes_in > n * min(len(encode(cue.message)) for cue in cues)
        assert 0 < played.spent.cpu_s < played.seconds


@pytest.mark.redis
@pytest.mark.parametrize("n", [1, 8])
def test_a_press_reads_what_it_writes(tape: Tape, n: int):
    with (
        EmbeddedServer() as server,
        Press(server.url, [encode(one.message) for one in tape.said], n) as press,
    ):
        pressed = press.run(0.1)
        again = press.run(0.0)
    assert pressed.spent.n_added == pressed.counts.sent >= n * INBOXES
    assert pressed.counts.received <= pressed.counts.sent
    assert again.counts.sent == n * INBOXES
    if n == 1:
        assert pressed.counts.received == pressed.counts.sent


@pytest.mark.redis
def test_the_program_prints_its_tables(
    tape: Tape, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def taped(args: argparse.Namespace) -> list[Taped]:
        return [Taped(30.0, 8.0, 2, tape)]

    monkeypatch.setattr(carry, "taped", taped)
    flags = ["--seconds", "0.2", "--rates", "500", "--leads", "2", "--drafters", "2", "--vocabulary", "5000"]
    assert carry.main(flags) == 0
    out = capsys.readouterr().out
    heads = [line.split(" | ")[0] for line in out.splitlines() if line.startswith("| ")]
    assert heads.count("| buses") == 1
    assert {"| 1 at once", "| 8 at once", "| processor, µs", "| bytes in", "| bytes out"} <= set(heads)
    assert heads.count("| 30 ms") == 3  # what is said, and leads with one drafter and with three
