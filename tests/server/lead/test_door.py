"""Keys, bounds and logs as flags, environment and files say them."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.errors import AccessError, StartupError
from server.flags import read
from server.lead.listening import client_policy_of
from server.settings import LeadSettings


@pytest.mark.parametrize(
    "flags", [["--api-key", "a,b"], ["--api-key", "a", "--api-key", "b"], ["--api-key", " a , b,"]]
)
def test_keys_as_flags(flags: list[str]):
    assert read(LeadSettings, flags).keys() == ("a", "b")


def test_keys_from_the_environment_and_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    file = tmp_path / "keys"
    file.write_text("# for the others\n\n  c  \nd#1\n   # nobody\n")
    monkeypatch.setenv("DUO_API_KEY", "a,b")
    monkeypatch.setenv("DUO_API_KEY_FILE", str(file))
    settings = read(LeadSettings, [])
    assert settings.keys() == ("a", "b", "c", "d#1")
    assert "a,b" not in repr(settings)
    assert "'a'" not in repr(settings)
    assert len(client_policy_of(settings).edge.access.callers) == 4


def test_empty_keys_stay_closed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for value in ("", " , "):
        with pytest.raises(StartupError, match="--api-key"):
            read(LeadSettings, ["--api-key", value])
    file = tmp_path / "keys"
    file.write_text("# none yet\n")
    with pytest.raises(StartupError, match="no API key"):
        read(LeadSettings, ["--api-key-file", str(file)]).keys()
    with pytest.raises(StartupError, match="cannot read"):
        read(LeadSettings, ["--api-key-file", str(tmp_path / "missing")]).keys()
    monkeypatch.setenv("DUO_API_KEY", "")
    with pytest.raises(StartupError, match="--api-key"):
        read(LeadSettings, [])


def test_without_any_everybody_is_let_in():
    assert read(LeadSettings, []).keys() == ()


def test_bounds_and_origins_reach_the_edge():
    flags = ["--max-body", "2", "--timeout", "7", "--cors-origins", "http://a,http://b", "--grace", "9"]
    door = client_policy_of(read(LeadSettings, [*flags, "--write-timeout", "3"]))
    assert door.bounds.write_s == 3
    assert (door.edge.max_body, door.edge.body_s, door.grace_s) == (2 << 20, 7, 9)
    assert door.edge.cors_origins == ("http://a", "http://b")
    assert not door.edge.log.requests
    logged = client_policy_of(read(LeadSettings, ["--log-prompts"])).edge.log
    assert (logged.requests, logged.prompts) == (True, True)
    told = client_policy_of(read(LeadSettings, ["--log-requests"])).edge.log
    assert (told.requests, told.prompts) == (True, False)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "127.0.0.9"])
def test_loopback_needs_a_local_name(address: str):
    door = client_policy_of(read(LeadSettings, []), address)
    assert door.made_key is None
    assert door.edge.local
    assert door.clients == "of this machine, without a key"


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "10.0.0.2"])
def test_remote_start_makes_a_key(address: str):
    first, second = (client_policy_of(read(LeadSettings, []), address) for _ in range(2))
    assert first.made_key
    assert second.made_key
    assert first.made_key != second.made_key
    [caller] = first.edge.access.callers
    assert first.edge.access.admit([first.made_key.encode()]) == caller
    with pytest.raises(AccessError):
        first.edge.access.admit([second.made_key.encode()])
    given = client_policy_of(read(LeadSettings, ["--api-key", "k"]), address)
    assert given.made_key is None
    assert given.clients == "with an API key"
    open_to_all = client_policy_of(read(LeadSettings, ["--no-api-key"]), address)
    assert open_to_all.made_key is None
    assert not open_to_all.edge.local
    assert open_to_all.clients == "everybody, without a key"


def test_keys_and_none_contradict_each_other():
    with pytest.raises(StartupError, match="--no-api-key lets everybody in"):
        read(LeadSettings, ["--no-api-key", "--api-key", "k"]).keys()
