"""Which vocabularies fit, and what a member's card may say."""

from __future__ import annotations

import platform
import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path

import orjson
import pytest

from server.speculation.wire.messages import MAX_DRAFTER_NAME
from server.speculation.wire.presence import (
    CHECKSUM_TOKENS,
    MAX_BLOCKS,
    MAX_SIZE_DIFFERENCE,
    Presence,
    VocabularyCard,
    kernel_id,
    mismatch,
    names,
    refusal,
    unique_id,
    vocabulary_card,
)
from server.speculation.wire.roster import MAX_CARD_BYTES, MAX_PEERS, Roster, read_card, write_card


@dataclass
class Pieces:
    """A vocabulary of numbered pieces, some of them changed."""

    size: int
    longest: int = 1
    bos: int | None = 1
    eos: int | None = 2
    changed: dict[int, bytes] = field(default_factory=dict[int, bytes])
    eog: frozenset[int] = frozenset({2})
    add_bos: bool = True
    fim: None = None
    added: dict[str, int] = field(default_factory=dict[str, int])

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        raise NotImplementedError("a card does not tokenize")

    def piece(self, token: int, *, special: bool = False) -> bytes:
        assert special, "control tokens count, too"
        return self.changed.get(token, b"piece %d" % token)


LEAD = vocabulary_card(Pieces(4 * CHECKSUM_TOKENS + 10))


def test_a_card_has_a_checksum_per_block() -> None:
    assert LEAD.size == 4 * CHECKSUM_TOKENS + 10
    assert (LEAD.bos, LEAD.eos) == (1, 2)
    assert len(LEAD.blocks) == len(set(LEAD.blocks)) == 5


def test_pieces_do_not_run_into_each_other() -> None:
    one = vocabulary_card(Pieces(2, changed={0: b"ab", 1: b"c"}))
    other = vocabulary_card(Pieces(2, changed={0: b"a", 1: b"bc"}))
    assert one.blocks != other.blocks


def test_equal_vocabularies_fit() -> None:
    assert mismatch(LEAD, vocabulary_card(Pieces(4 * CHECKSUM_TOKENS + 10))) is None


def test_padding_at_the_end_fits() -> None:
    padded = vocabulary_card(Pieces(4 * CHECKSUM_TOKENS + 10 + MAX_SIZE_DIFFERENCE))
    assert mismatch(LEAD, padded) is None
    assert mismatch(padded, LEAD) is None


@pytest.mark.parametrize(
    ("drafter", "reason"),
    [
        (Pieces(4 * CHECKSUM_TOKENS + 11 + MAX_SIZE_DIFFERENCE), "sizes differ: lead 4106, drafter 4235"),
        (Pieces(4 * CHECKSUM_TOKENS + 10, bos=None), "BOS tokens differ: lead 1, drafter None"),
        (Pieces(4 * CHECKSUM_TOKENS + 10, eos=7), "EOS tokens differ: lead 2, drafter 7"),
        (Pieces(4 * CHECKSUM_TOKENS + 10, changed={CHECKSUM_TOKENS: b"x"}), "between ids 1024 and 2047"),
        (
            Pieces(4 * CHECKSUM_TOKENS + 10, changed={4 * CHECKSUM_TOKENS + 9: b"x"}),
            "between ids 4096 and 5119",
        ),
        (
            Pieces(4 * CHECKSUM_TOKENS + 20, changed={4 * CHECKSUM_TOKENS - 1: b"x"}),
            "between ids 3072 and 4095",
        ),
    ],
)
def test_misfits_have_a_reason(drafter: Pieces, reason: str) -> None:
    assert reason in (mismatch(LEAD, vocabulary_card(drafter)) or "")


def test_refusal_names_a_fitting_vocabulary() -> None:
    other = vocabulary_card(Pieces(4 * CHECKSUM_TOKENS + 10, eos=7))
    reason = refusal(replace(ANNE, role="lead"), replace(ANNE, vocabulary=other)) or ""
    assert reason.startswith("EOS tokens differ: lead 2, drafter 7; ")
    assert "--translate" in reason
    assert refusal(replace(ANNE, role="lead"), ANNE) is None


def test_equal_processes_have_distinct_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    n_random = list[int]()

    def token_hex(n: int) -> str:
        n_random.append(n)
        return f"{len(n_random):0{2 * n}x}"

    monkeypatch.setattr(secrets, "token_hex", token_hex)
    assert len({unique_id("worker") for _ in range(100)}) == 100
    n_ids, n_processes = 2 ** (8 * min(n_random)), 1000
    assert n_processes**2 / 2 / n_ids < 0.001  # that any two are equal


def test_drafters_are_named_and_numbered() -> None:
    ids = [unique_id(name) for name in ("laptop", "laptop", "the big one", platform.node())]
    assert len(set(ids)) == 4
    drafters = [replace(ANNE, id=id, host=platform.node()) for id in (*ids, "anne")]
    assert names(drafters) == ["laptop", "laptop 2", "the-big-one", "this machine", "anne"]
    elsewhere = replace(ANNE, id=unique_id("vm-7"), host="vm-7")
    assert names([elsewhere]) == ["vm-7"]


ANNE = Presence("anne", "drafter", "tiny", "0.1.0", LEAD, capacity=4, td_us=900)


def test_a_card_round_trips() -> None:
    assert read_card("drafter:anne", write_card(ANNE)) == ANNE
    nobody = replace(ANNE, vocabulary=VocabularyCard(0, None, None, ()))
    assert read_card("drafter:anne", write_card(nobody)) == nobody


def test_a_later_version_may_say_more() -> None:
    card = orjson.loads(write_card(ANNE)) | {"mood": "good"}
    assert read_card("drafter:anne", orjson.dumps(card)) == ANNE


@pytest.mark.parametrize(
    ("member", "change"),
    [
        ("drafter:bert", {}),
        ("lead:anne", {}),
        ("drafter:anne", {"role": "lead"}),
        ("drafter:anne", {"role": "king"}),
        ("drafter:anne", {"capacity": "many"}),
        ("drafter:anne", {"vocabulary": None}),
        *[("drafter:anne", {"td_us": td_us}) for td_us in (-1, 1 << 32, 0.5, "1e999", [[7]])],
        *[("drafter:anne", {"capacity": capacity}) for capacity in (-1, 1 << 17)],
        *[("drafter:anne", {"wire": wire}) for wire in (-1, 256, None)],
        *[(f"drafter:{id}", {"id": id}) for id in ("", "a b", "a\nb", "x" * 129, "a\u202eb")],
        ("drafter:anne", {"vocabulary": {"size": 1, "bos": None, "eos": None, "blocks": ["x"]}}),
    ],
)
def test_cards_that_are_not_believed(member: str, change: dict[str, object]) -> None:
    assert read_card(member, orjson.dumps(orjson.loads(write_card(ANNE)) | change)) is None


@pytest.mark.parametrize(
    "change",
    [
        {"size": -1},
        {"size": 1 << 30},
        {"bos": -1},
        {"eos": 1 << 40},
        {"blocks": [-1]},
        {"blocks": [1 << 32]},
        {"blocks": [0] * (MAX_BLOCKS + 1)},
        {"blocks": {"0": 1}},
    ],
)
def test_vocabularies_that_are_not_believed(change: dict[str, object]) -> None:
    card = orjson.loads(write_card(ANNE))
    card["vocabulary"] |= change
    assert read_card("drafter:anne", orjson.dumps(card)) is None


@pytest.mark.parametrize(
    "card",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b"\xff\xfe",
        b"null",
        b" " * MAX_CARD_BYTES + b"{}",
        b"[" * 5000,
        write_card(ANNE).replace(b'"td_us":900', b'"td_us":1' + b"0" * 400),
        write_card(ANNE).replace(b'"td_us":900', b'"td_us":NaN'),
        write_card(ANNE).replace(b'"td_us":900', b'"td_us":Infinity'),
    ],
)
def test_cards_that_are_not_cards(card: bytes) -> None:
    assert read_card("drafter:anne", card) is None


def test_card_names_forge_no_log() -> None:
    said = "tiny\n2026-01-01 WARNING all is lost \x1b[31m" + "x" * 1000
    card = orjson.dumps(orjson.loads(write_card(ANNE)) | {"model": said, "version": said, "host": said})
    presence = read_card("drafter:anne", card)
    assert presence is not None
    for name in (presence.model, presence.version, presence.host):
        assert name == ("tiny?2026-01-01 WARNING all is lost ?[31m" + "x" * 1000)[:MAX_DRAFTER_NAME]


def test_versionless_card_is_refused() -> None:
    card = orjson.loads(write_card(ANNE))
    del card["wire"]
    earlier = read_card("drafter:anne", orjson.dumps(card))
    lead = replace(ANNE, id="lead", role="lead", version="0.9")
    assert earlier is not None
    assert refusal(lead, earlier) == (
        "it speaks version 2 of the wire, this lead version 4: install duo 0.9 on both sides"
    )
    assert refusal(lead, ANNE) is None


def test_one_kernel_marks_one_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In containers the machine has other names."""
    booted = tmp_path / "boot_id"
    booted.write_text("7f0c\n")
    monkeypatch.setattr("server.speculation.wire.presence.BOOT_ID", booted)
    assert kernel_id.__wrapped__() == "7f0c"
    booted.unlink()
    assert kernel_id.__wrapped__() == platform.node()


def test_kernelless_card_may_be_local() -> None:
    card = orjson.loads(write_card(replace(ANNE, kernel="7f0c")))
    told = read_card("drafter:anne", orjson.dumps(card))
    assert told is not None
    assert told.kernel == "7f0c"
    del card["kernel"]
    silent = read_card("drafter:anne", orjson.dumps(card))
    assert silent is not None
    assert silent.kernel == kernel_id()


@pytest.mark.parametrize("n_blocks", [0, 4, 6, 17])
def test_checksums_of_another_block_size_are_refused(n_blocks: int) -> None:
    other = replace(LEAD, blocks=tuple(range(n_blocks)))
    assert mismatch(LEAD, other) == (
        f"{n_blocks} checksums for 4106 tokens: another version of duo made them"
    )


def test_a_roster_follows_the_cards() -> None:
    roster = Roster("drafter")
    assert roster.newcomers({"drafter:bert", "drafter:anne", "lead:carl", "rubbish"}) == [
        "drafter:anne",
        "drafter:bert",
    ]
    bert = replace(ANNE, id="bert")
    assert roster.update({"drafter:bert": write_card(bert), "drafter:anne": write_card(ANNE)}) == (ANNE, bert)
    assert roster.newcomers({"drafter:bert", "drafter:anne"}) == []
    faster = replace(ANNE, td_us=500)
    assert roster.update({"drafter:bert": None, "drafter:anne": write_card(faster)}) == (faster,)
    assert roster.names == ["drafter:anne"]
    assert roster.update({"drafter:anne": b"rubbish"}) == ()


def test_a_roster_is_bounded() -> None:
    roster = Roster("drafter")
    crowd = {f"drafter:{i}" for i in range(2 * MAX_PEERS)}
    new = roster.newcomers(crowd)
    assert len(new) == MAX_PEERS
    roster.update(dict.fromkeys(new, b"rubbish"))
    assert roster.newcomers(crowd) == []
