"""The version is the same wherever it is written."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

from tests.contract.contract import CONTRACT

ROOT = Path(__file__).parent.parent


def test_one_version_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    newest = re.search(r"^## \[(\d+\.\d+\.\d+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == project == CONTRACT["info"]["version"] == version("duo")


def test_lock_files_carry_no_addresses():
    for lock in ROOT.glob("requirements*.lock"):
        text = lock.read_text()
        assert "llama-cpp-python==" in text
        assert "://" not in text
        assert "--index" not in text
