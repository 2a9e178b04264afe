"""The version is the same wherever it is written."""

from __future__ import annotations

import re
import runpy
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.contract.contract import CONTRACT

ROOT = Path(__file__).parent.parent


def test_versions_agree_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    newest = re.search(r"^## \[(\d+\.\d+\.\d+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == project == CONTRACT["info"]["version"] == version("duo")


LOCKS = ("requirements.lock", "requirements-dev.lock")


@pytest.mark.parametrize("name", LOCKS)
def test_lock_files_have_hashes(name: str):
    text = (ROOT / name).read_text()
    entries = re.sub(r"\\\n", " ", text).splitlines()
    assert any(entry.startswith("llama-cpp-python==") for entry in entries)
    for entry in entries:
        assert re.fullmatch(r"[a-z0-9.-]+==[^ ]+ +(; [^-]+)?(--hash=sha256:[0-9a-f]{64} *)+", entry), entry
    assert "://" not in text
    assert "--index" not in text


def test_installs_require_hashes():
    files = [ROOT / "Makefile", *ROOT.glob("docker/*.Dockerfile")]
    installs = [line for file in files for line in file.read_text().splitlines() if "-r requirements" in line]
    assert len(installs) == 4
    assert [line for line in installs if "--require-hashes" not in line] == []


def test_audit_fails_for_known_faults():
    """The report has pip-audit's form."""
    verdict = runpy.run_path(str(ROOT / ".ci" / "audit.py"))["verdict"]
    sound: dict[str, Any] = {"name": "idna", "version": "3.20", "vulns": []}
    skipped = {"name": "jinja2", "skip_reason": "Dependency not found on PyPI and could not be audited"}
    fault = {"id": "PYSEC-0-1", "fix_versions": ["3.21"], "aliases": [], "description": ""}
    assert verdict({"dependencies": [sound, skipped], "fixes": []}) == (
        ["audited: 1 of 2 packages, 0 known faults"],
        0,
    )
    assert verdict({"dependencies": [skipped], "fixes": []}) == (
        ["not audited: no advisories can be had for any of 1 packages"],
        0,
    )
    lines, status = verdict({"dependencies": [sound | {"vulns": [fault]}, skipped], "fixes": []})
    assert status == 1
    assert lines[1] == "  idna 3.20: PYSEC-0-1, mended in 3.21"
