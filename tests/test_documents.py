"""What documents point at exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from server.flags import SYNONYMS
from server.settings_page import page

ROOT = Path(__file__).parent.parent
OTHERS = ROOT / "benchmarks" / "README.md", ROOT / "server" / "models" / "MODEL_CARD.md"
FOUND = *ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *OTHERS
DOCUMENTS = [path for path in FOUND if "node_modules" not in path.parts]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path):
    links = re.findall(r"\]\(([^)#\s]+)", path.read_text())
    missing = [link for link in links if "://" not in link and not (path.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_have_flags_that_exist(path: Path):
    """In blocks of code: every flag behind a duo command."""
    known = set(re.findall(r"--?[a-z][a-z0-9-]*", page())) | set(SYNONYMS) | {"--help", "--version"}
    blocks = re.findall(r"```sh\n(.*?)```", path.read_text(), re.DOTALL)
    lines = [line.split("#")[0] for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    commands = [
        line for line in lines if re.search(r"(?:^|[\s/])duo (?:up|serve|draft|chat|top|probe|lend)\b", line)
    ]
    flags = {flag for line in commands for flag in re.findall(r"(?<=\s)--?[a-z][a-z0-9-]*", line)}
    assert flags - known == set()


def test_tests_that_hold_a_promise_exist():
    """In SECURITY.md: each row of a table of promises names at least one."""
    text = (ROOT / "SECURITY.md").read_text()
    rows = [
        line
        for line in text.splitlines()
        if line.startswith("| ") and not re.match(r"\| (---|promise)", line)
    ]
    assert [row for row in rows if "::test_" not in row] == []
    named = re.findall(r"(tests/[\w/]+\.py)::(test_\w+)", text)
    assert len(named) >= len(rows) >= 30
    defined = {
        path: (ROOT / path).read_text() for path in {path for path, _ in named} if (ROOT / path).exists()
    }
    missing = [f"{path}::{name}" for path, name in named if f"def {name}(" not in defined.get(path, "")]
    assert missing == []
