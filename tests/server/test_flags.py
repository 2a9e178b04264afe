"""Flags: what help says of them, what wrong ones are answered, and the page of all settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic_settings import BaseSettings

from drafters.drafter_cli import main as drafter
from drafters.drafter_settings import DrafterSettings
from server.cli import main
from server.flag_groups import GROUPS, START
from server.flag_help import grouped, program
from server.flags import SYNONYMS
from server.settings import LeadSettings, UpSettings
from server.settings_page import page
from server.terminal.probe import ProbeSettings

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("cls", [UpSettings, LeadSettings, DrafterSettings, ProbeSettings])
def test_every_setting_has_a_place_in_help(cls: type[BaseSettings]):
    named = " ".join(GROUPS[program(cls)].values()).split()
    assert len(named) == len(set(named))
    hidden = {"end_with_parent", "lent_by", "lent_salt"}  # for processes that duo starts itself
    mine = {info.alias or name for name, info in cls.model_fields.items()}
    assert not mine - hidden - set(named)
    shown = {flag.name for flags in grouped(cls, SYNONYMS).values() for flag in flags}
    assert shown == mine - hidden


def test_help_begins_with_what_people_need(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["up", "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert out.index(START) < out.index("-m, --model PATH") < out.index("\nModel:") < out.index("\nExpert:")
    assert len(grouped(UpSettings, SYNONYMS)[START]) == 10
    assert "--api-key KEY,…" in out
    assert "DUO_SOME_NAME" in out
    for mark in ("tuple[", "(default: ())", "None", "Annotated"):
        assert mark not in out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["up", "--ctx-sise", "3"], "no flag --ctx-sise (did you mean --ctx-size?)"),
        (["serve", "--no-gaet"], "no flag --no-gaet (did you mean --no-gate?)"),
        (["serve", "--zzzzzz=1"], "no flag --zzzzzz: duo serve --help"),
        (["chat", "--ulr", "x"], "no flag --ulr (did you mean --url?)"),
        (["up", "--port"], "argument --port: expected one argument"),
        (["chatt"], "no such command (did you mean chat?)"),
    ],
)
def test_missing_files_fail_in_line(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_a_drafter_explains_wrong_flags_too(capsys: pytest.CaptureFixture[str]):
    assert drafter(["--modle", "x"]) == 2
    assert "did you mean --model?" in capsys.readouterr().err


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("duo 0.")


def test_settings_page_is_current():
    assert (ROOT / "docs" / "settings.md").read_text() == page()
