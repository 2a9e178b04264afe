"""The bus on a real server: who is there, what arrives, and what is left behind."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
import redis
from conftest import Join
from members import POOL, Member, eventually, keys, presence

from server.sampling.params import SamplingParams
from server.speculation.wire import intake, streams
from server.speculation.wire.messages import (
    MAX_BYTES,
    ROOT,
    Close,
    Commit,
    Draft,
    Message,
    Open,
    Refuse,
    Want,
    encode,
)
from server.speculation.wire.presence import Presence
from server.speculation.wire.roster import write_card
from server.speculation.wire.streams import MAX_MEMBERS, RedisBus

pytestmark = pytest.mark.redis

INBOX = f"duo:{{{POOL}}}:drafter:D"
LEADS_INBOX = f"duo:{{{POOL}}}:lead:lead"


def test_two_members_meet_and_talk(join: Join) -> None:
    lead, drafter = join("L", "lead"), join("D", "drafter")
    lead.wait_to_see("D")
    drafter.wait_to_see("L")
    assert lead.peers_seen == [[presence("D", "drafter")]]
    down: list[Message] = [
        Open("L", 2**64 - 1, 2**63, 16, SamplingParams(), tuple(range(100_000))),
        *(Commit(1, i, i, (i,)) for i in range(200)),
        Close("L", 1, True),
        Refuse("L", "too slow"),
    ]
    up: list[Message] = [Draft("D", 1, 5, 6, 900, (-1, 0), (7, 8), b"\xff\x00"), Want("D", 1, 1)]
    for message in down:
        lead.bus.send("D", message)
    for message in up:
        drafter.bus.send("L", message)
    drafter.wait(lambda: len(drafter.messages) == len(down))
    lead.wait(lambda: len(lead.messages) == len(up))
    assert (drafter.messages, lead.messages) == (down, up)
    eventually(lambda: lead.bus.counts["sent"] == len(down))
    assert drafter.bus.counts["received"] == len(down)


@pytest.mark.parametrize("option", ["?protocol=2", "?protocol=3", "?protocol=3&legacy_responses=false"])
def test_both_reply_shapes_are_understood(url: str, option: str) -> None:
    lead, drafter = Member(url + option, "L", "lead"), Member(url + option, "D", "drafter")
    try:
        lead.start()
        drafter.start()
        lead.wait_to_see("D")
        lead.bus.send("D", Close("L", 1, False))
        drafter.wait(lambda: drafter.messages == [Close("L", 1, False)])
    finally:
        lead.bus.close()
        drafter.bus.close()


def test_early_answer_reaches_the_lead(join: Join) -> None:
    """A drafter looks for leads four times a second, but learns of sessions at once."""
    drafter = join("D", "drafter")
    eventually(lambda: drafter.bus.counts["received"] == 0)
    lead = join("L", "lead")
    lead.wait_to_see("D")
    lead.bus.send("D", Close("L", 1, False))
    drafter.wait(lambda: drafter.messages)
    drafter.bus.send("L", Want("D", 1, 1))
    lead.wait(lambda: lead.messages == [Want("D", 1, 1)])


def test_roles_see_only_each_other(join: Join) -> None:
    leads = [join(id, "lead") for id in ("L1", "L2")]
    drafters = [join(id, "drafter") for id in ("D1", "D2", "D3")]
    for lead in leads:
        lead.wait_to_see("D1", "D2", "D3")
    for drafter in drafters:
        drafter.wait_to_see("L1", "L2")


def test_pools_do_not_mix(join: Join, url: str) -> None:
    lead = join("L", "lead")
    stranger = RedisBus(url, "other", presence("X", "drafter"))
    stranger.start(lead)
    drafter = join("D", "drafter")
    lead.wait_to_see("D")
    lead.bus.send("X", Close("L", 1, False))
    eventually(lambda: lead.bus.counts["dropped"] == 1)
    stranger.close()
    drafter.bus.close()
    lead.wait_to_see()
    assert [[peer.id for peer in peers] for peers in lead.peers_seen] == [["D"], []]


def n_deletions(client: redis.Redis) -> int:
    """Return how often DEL was called on the server."""
    return int(client.info("commandstats").get("cmdstat_del", {"calls": 0})["calls"])


def test_leaving_takes_everything_away_at_once(join: Join, client: redis.Redis) -> None:
    lead, drafter = join("L", "lead"), join("D", "drafter")
    lead.wait_to_see("D")
    drafter.wait_to_see("L")
    drafter.bus.send("L", Want("D", 1, 1))  # what was queued before is still sent
    before = n_deletions(client)
    drafter.bus.close()
    eventually(lambda: not [key for key in keys(client) if key.endswith(b":D")])
    assert n_deletions(client) > before, "its keys expired, it did not take them away"
    lead.wait(lambda: lead.messages)
    lead.wait_to_see()
    lead.bus.send("D", Close("L", 1, True))
    eventually(lambda: lead.bus.counts["dropped"] == 1)
    assert not client.exists(INBOX), "sending must not make an inbox"
    drafter.bus.close()  # may be repeated
    lead.bus.close()
    assert keys(client) == []


def test_outliving_thread_closes_its_connections(
    join: Join, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine close() does not wait long enough, and a thread that goes on connects anew."""
    monkeypatch.setattr(streams, "BUS_CLOSE_S", 0.0)
    before = set(threading.enumerate())
    drafter = join("D", "drafter")
    threads = set(threading.enumerate()) - before
    eventually(lambda: client.exists(INBOX))
    drafter.bus.close()
    for thread in threads:
        thread.join()
    eventually(lambda: len(client.client_list()) == 1)


def test_working_keys_have_ttl(join: Join, client: redis.Redis) -> None:
    lead, drafter = join("L", "lead"), join("D", "drafter")
    lead.wait_to_see("D")
    drafter.wait_to_see("L")
    for i in range(300):
        lead.bus.send("D", Commit(1, i, i, (i,)))
        drafter.bus.send("L", Want("D", 1, i))
    drafter.wait(lambda: len(drafter.messages) == 300)
    assert keys(client) == sorted(
        f"duo:{{{POOL}}}:{key}".encode()
        for key in ("members", "member:lead:L", "member:drafter:D", "lead:L", "drafter:D")
    )
    assert all(0 < client.pttl(key) <= 10_000 for key in keys(client))


def test_read_messages_are_removed(join: Join, client: redis.Redis) -> None:
    lead, drafter = join("L", "lead"), join("D", "drafter")
    lead.wait_to_see("D")
    lead.bus.send("D", Commit(1, 0, 0, (1, 2, 3)))
    drafter.wait(lambda: drafter.messages)
    eventually(lambda: client.xlen(INBOX) == 0)


def test_describing_oneself_anew(join: Join) -> None:
    lead, drafter = join("L", "lead"), join("D", "drafter")
    lead.wait_to_see("D")
    drafter.bus.describe(presence("D", "drafter", td_us=1234))
    lead.wait(lambda: lead.peers_seen[-1][0].td_us == 1234)
    assert [len(peers) for peers in lead.peers_seen] == [1, 1]


def test_inbox_rubbish_is_counted(join: Join, client: redis.Redis) -> None:
    lead, drafter = join("L", "lead"), join("D", "drafter")
    lead.wait_to_see("D")
    good = encode(Close("L", 1, True))
    rubbish: list[dict[str, bytes]] = [
        {"m": b""},
        {"m": good[:-1]},
        {"m": good + b"\0"},
        {"m": b"\xff" * 100},
        {"x": good},
        {"m": good, "x": good},
        {"m": bytes(MAX_BYTES + 1)},
    ]
    for fields in rubbish:
        client.xadd(INBOX, fields)  # pyright: ignore[reportArgumentType]
    lead.bus.send("D", Close("L", 9, True))
    drafter.wait(lambda: drafter.messages == [Close("L", 9, True)])
    assert drafter.bus.counts["undecodable"] == len(rubbish)


def test_rubbish_among_the_members_is_passed_over(join: Join, client: redis.Redis) -> None:
    members = f"duo:{{{POOL}}}:members"
    lead = join("L", "lead")
    eventually(lambda: client.exists(members))
    client.sadd(members, "drafter:ghost", "drafter:liar", "nobody", b"\xff\xfe", "drafter:")
    client.set(f"duo:{{{POOL}}}:member:drafter:liar", b'{"id": "D"}', ex=60)
    vast = write_card(presence("vast", "drafter")).replace(b'"td_us":0', b'"td_us":1' + b"0" * 400)
    client.set(f"duo:{{{POOL}}}:member:drafter:vast", vast, ex=60)
    client.set(f"duo:{{{POOL}}}:member:drafter:long", bytes(1 << 22), ex=60)
    client.lpush(f"duo:{{{POOL}}}:member:drafter:list", "x")
    client.expire(f"duo:{{{POOL}}}:member:drafter:list", 60)
    client.sadd(members, "drafter:vast", "drafter:long", "drafter:list")
    join("D", "drafter")
    lead.wait_to_see("D")
    eventually(lambda: not client.sismember(members, "drafter:ghost"))


def test_member_flood_hides_nobody(join: Join, client: redis.Redis) -> None:
    members = f"duo:{{{POOL}}}:members"
    lead, drafter = join("L", "lead"), join("D", "drafter")
    lead.wait_to_see("D")
    drafter.wait_to_see("L")
    client.sadd(members, *(f"drafter:{i:07}" for i in range(100 * MAX_MEMBERS)))
    another = join("E", "drafter")
    lead.wait_to_see("D", "E")
    eventually(lambda: client.scard(members) == 3)
    drafter.bus.close()
    lead.wait_to_see("E")
    assert [[peer.id for peer in peers] for peers in lead.peers_seen] == [["D"], ["D", "E"], ["E"]]
    another.wait_to_see("L")


def test_unencodable_messages_are_refused(join: Join) -> None:
    lead, drafter = join("L", "lead"), join("D", "drafter")
    lead.wait_to_see("D")
    lead.bus.send("D", Commit(1, 0, 0, (1,) * (MAX_BYTES // 4)))
    lead.bus.send("D", Commit(1, 0, 0, (2**31,)))
    lead.bus.send("D", Close("L", -1, True))
    lead.bus.send("D", Close("L", 2, True))
    drafter.wait(lambda: drafter.messages == [Close("L", 2, True)])
    assert lead.bus.counts["dropped"] == 3


def test_raising_listener_keeps_the_link(join: Join, url: str, caplog: pytest.LogCaptureFixture) -> None:
    class Faulty:
        def received(self, message: Message) -> None:
            raise RuntimeError("a bug")

        def peers(self, present: Sequence[Presence]) -> None:
            raise RuntimeError("a bug")

    lead = join("L", "lead")
    bus = RedisBus(url, POOL, presence("F", "drafter"))
    bus.start(Faulty())
    try:
        lead.wait_to_see("F")
        for i in range(3):
            lead.bus.send("F", Close("L", i, True))
        eventually(lambda: bus.counts["received"] == 3)
        assert lead.sees == ["F"]
    finally:
        bus.close()
    assert "a bus listener failed" in caplog.text


def test_a_lost_inbox_is_made_anew(join: Join, client: redis.Redis, caplog: pytest.LogCaptureFixture) -> None:
    """This also holds on a server whose clock is behind the ids already read."""
    lead, drafter = join("L", "lead"), join("D", "drafter")
    lead.wait_to_see("D")
    drafter.wait_to_see("L")
    client.xadd(INBOX, {"m": encode(Close("L", 1, True))}, id="99999999999999-0")
    drafter.wait(lambda: drafter.messages)
    client.delete(INBOX)
    eventually(lambda: client.exists(INBOX))
    drafter.wait(lambda: drafter.sees == ["L"] and len(drafter.peers_seen) == 3)  # there, alone, there
    lead.bus.send("D", Close("L", 2, True))
    drafter.wait(lambda: drafter.messages[1:] == [Close("L", 2, True)])
    assert sum("lost the Redis server" in record.message for record in caplog.records) == 1


def test_a_flood_is_dropped_until_it_ends(
    join: Join, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """A flood may also be of empty entries. Its bound is small here."""
    monkeypatch.setattr(intake, "MOST_S", 0.002)
    monkeypatch.setattr(intake, "RESTS", (1, 1))
    lead, drafter = join("lead", "lead"), join("drafter", "drafter")
    lead.wait_to_see("drafter")
    drafter.wait_to_see("lead")

    def is_flooded() -> bool:
        with client.pipeline(transaction=False) as pipe:
            for _ in range(500):
                pipe.execute_command("XADD", LEADS_INBOX, "NOMKSTREAM", "*", "w", "")
            pipe.execute()
        return "dropped" in caplog.text

    eventually(is_flooded)

    def is_heard() -> bool:
        drafter.bus.send("lead", Want("drafter", 1, 0))
        return bool(lead.messages)

    eventually(is_heard)
    assert client.xlen(LEADS_INBOX) < 500


def test_lead_reads_bounded_drafts(join: Join, client: redis.Redis):
    lead = join("lead", "lead")
    eventually(lambda: client.exists(LEADS_INBOX))
    for message in (
        Commit(1, 0, 0, (1,) * 2000),
        Draft("d" * 512, 1, 5, 6, 0, (ROOT,) * 256, (1,) * 256, bytes(256)),
    ):
        client.xadd(LEADS_INBOX, {"m": encode(message)})
    eventually(lambda: lead.messages)
    assert lead.bus.counts["undecodable"] == 1
