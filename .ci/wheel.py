"""Build the wheel, install it where nothing of this repository is, and ask it one thing through duo up.

.venv/bin/python .ci/wheel.py

The packages that duo depends on are those of this environment, so that llama.cpp is not compiled again.
"""

from __future__ import annotations

import re
import site
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[1]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
QUESTION = {"role": "user", "content": "What is a tuple?"}
ANSWER_S = 60
END_S = 20


def installed(folder: Path) -> Path:
    """Return the programs of a new environment with the wheel, which sees this one's other packages."""
    subprocess.run([*PIP, "wheel", "--no-deps", "--wheel-dir", folder, ROOT], check=True)
    [wheel] = folder.glob("duo-*.whl")
    home = folder / "environment"
    venv.create(home, symlinks=True)
    [own] = home.glob("lib/python*/site-packages")
    (own / "others.pth").write_text("\n".join(site.getsitepackages()))
    into = [*PIP, "--python", home / "bin" / "python"]
    subprocess.run([*into, "install", "--no-index", "--no-deps", "--ignore-installed", wheel], check=True)
    return home / "bin"


def address(output: Iterable[str]) -> str:
    """Return where duo serves, by its output."""
    said: list[str] = []
    for line in output:
        said.append(line)
        if found := re.search(r" page +(http\S+)", line):
            return found[1]
    raise SystemExit("duo up ended:\n" + "".join(said))


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="duo-wheel-") as name:
        folder = Path(name)
        programs = installed(folder)
        where = "import server, drafters; print(server.__file__, drafters.__file__)"
        found = subprocess.check_output([programs / "python", "-c", where], cwd=folder, text=True).split()
        assert all(Path(file).is_relative_to(folder) for file in found), found
        up = [programs / "duo", "up", "--port", "0"]
        with subprocess.Popen(
            up, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as duo:
            try:
                check(address(duo.stdout or ()))
            finally:
                duo.terminate()
                duo.communicate(timeout=END_S)
        assert duo.returncode == 0, duo.returncode
    print("the wheel serves")
    return 0


def check(url: str) -> None:
    """Check one chat, the page, and the contract."""
    with httpx.Client(base_url=url, timeout=ANSWER_S) as client:
        body = {"messages": [QUESTION], "max_tokens": 32}
        reply = client.post("/v1/chat/completions", json=body).raise_for_status().json()
        assert reply["choices"][0]["message"]["content"], reply
        for path in ("/", "/status", "/openapi.yaml"):
            assert client.get(path).raise_for_status().content, path


if __name__ == "__main__":
    sys.exit(main())
