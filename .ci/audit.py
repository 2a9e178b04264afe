"""Known faults of the locked packages, by pip-audit. Status 1 if there is one, 0 if nobody can be asked.

python .ci/audit.py [LOCK_FILE]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

LOCK = "requirements-dev.lock"  # has what requirements.lock has
MOST_S = 120  # seconds. Half: a slow index is not asked to its end
ASK = ("--disable-pip", "--require-hashes", "--progress-spinner", "off", "--format", "json", "--requirement")


def verdict(report: dict[str, Any]) -> tuple[list[str], int]:
    """Return the lines of pip-audit's report, and the exit status."""
    packages = report["dependencies"]
    asked = [one for one in packages if "skip_reason" not in one]
    if not asked:
        return [f"not audited: no advisories can be had for any of {len(packages)} packages"], 0
    faults = [(one, fault) for one in asked for fault in one["vulns"]]
    lines = [f"audited: {len(asked)} of {len(packages)} packages, {len(faults)} known faults"]
    for one, fault in faults:
        mended = ", ".join(fault["fix_versions"]) or "no version yet"
        lines.append(f"  {one['name']} {one['version']}: {fault['id']}, mended in {mended}")
    return lines, int(bool(faults))


def main(lock: str = LOCK) -> int:
    with tempfile.TemporaryDirectory(prefix="duo-audit-") as name:
        venv.create(name, with_pip=True, symlinks=True)
        programs = Path(name) / "bin"
        install = [programs / "pip", "--disable-pip-version-check", "--quiet", "install", "pip-audit"]
        had = subprocess.run(install, capture_output=True, check=False)
        if had.returncode:
            print("not audited: pip-audit cannot be had")
            return 0
        command = [programs / "pip-audit", *ASK, lock]
        try:
            found = subprocess.run(command, capture_output=True, text=True, timeout=MOST_S, check=False)
        except subprocess.TimeoutExpired:
            print("not audited: the index does not answer")
            return 0
    if not found.stdout.startswith("{"):
        print("not audited:", found.stderr.strip().rpartition("\n")[2])
        return 0
    lines, status = verdict(json.loads(found.stdout))
    print("\n".join(lines))
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
