"""deploy/systemd: units that systemd would take, with commands that duo has."""

from __future__ import annotations

import configparser
import shlex
from pathlib import Path

import pytest

from drafters.drafter_settings import DrafterSettings
from server.flags import read
from server.local.lend import LendSettings
from server.settings import LeadSettings

UNITS = sorted((Path(__file__).parents[2] / "deploy" / "systemd").glob("*.service"))
COMMANDS = {"serve": LeadSettings, "draft": DrafterSettings, "lend": LendSettings}
KNOWN = {
    "Unit": "Description After Wants",
    "Service": "EnvironmentFile ExecStart DynamicUser CacheDirectory Restart RestartSec TimeoutStopSec "
    "NoNewPrivileges ProtectSystem ProtectHome PrivateTmp",
    "Install": "WantedBy",
}


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_runs_a_command_that_exists(path: Path):
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment]
    unit.read_string(path.read_text())
    assert set(unit.sections()) == set(KNOWN)
    for section, names in KNOWN.items():
        assert set(unit[section]) <= set(names.split())
    program, command, *flags = shlex.split(unit["Service"]["ExecStart"])
    assert program == "/opt/duo/bin/duo"
    read(COMMANDS[command], flags)
