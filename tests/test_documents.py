"""What documents point at exists."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from server.flags import SYNONYMS
from server.settings_page import page

ROOT = Path(__file__).parent.parent
OTHERS = (
    ROOT / "benchmarks" / "README.md",
    ROOT / "benchmarks" / "RESULTS.md",
    ROOT / "server" / "models" / "MODEL_CARD.md",
)
FOUND = *ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *OTHERS
DOCUMENTS = [path for path in FOUND if "node_modules" not in path.parts]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path):
    links = re.findall(r"\]\(([^)#\s]+)", path.read_text())
    missing = [link for link in links if "://" not in link and not (path.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_have_flags_that_exist(path: Path):
    """Check every flag behind a duo command in blocks of code."""
    known = set(re.findall(r"--?[a-z][a-z0-9-]*", page())) | set(SYNONYMS) | {"--help", "--version"}
    blocks = re.findall(r"```sh\n(.*?)```", path.read_text(), re.DOTALL)
    lines = [line.split("#")[0] for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    commands = [
        line for line in lines if re.search(r"(?:^|[\s/])duo (?:up|serve|draft|chat|top|probe|lend)\b", line)
    ]
    flags = {flag for line in commands for flag in re.findall(r"(?<=\s)--?[a-z][a-z0-9-]*", line)}
    assert flags - known == set()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_programs_that_measure_exist(path: Path):
    """The changelog and RESULTS may name former ones, with the date of their run."""
    named = re.findall(r"-m benchmarks\.(\w+)", path.read_text())
    gone = {name for name in named if not (ROOT / "benchmarks" / f"{name}.py").is_file()}
    assert gone - {"NAME"} == set()


def test_promised_tests_exist():
    """Each row of a table of promises in SECURITY.md names at least one test."""
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


LINES = {
    "README.md": 110,
    "ARCHITECTURE.md": 160,
    "benchmarks/RESULTS.md": 350,
    "docs/speculation.md": 150,
}
ADR_LINES = 60
PROSE_WORDS = 22_000  # of README, ARCHITECTURE, SECURITY, docs and ADRs
RECORD_WORDS = 8_000  # of CHANGELOG and RESULTS


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_stay_short(path: Path):
    name = path.relative_to(ROOT).as_posix()
    most = LINES.get(name, ADR_LINES if name.startswith("docs/adr/") else None)
    assert most is None or path.read_text().count("\n") <= most


def words(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text().split()) for path in paths)


def test_prose_has_few_words():
    records = [ROOT / "CHANGELOG.md", ROOT / "benchmarks" / "RESULTS.md"]
    prose = [path for path in DOCUMENTS if path not in records and path.name != "MODEL_CARD.md"]
    prose = [path for path in prose if "recipe" not in path.parts]
    assert words(prose) <= PROSE_WORDS
    assert words(records) <= RECORD_WORDS
