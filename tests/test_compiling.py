"""How the Makefile compiles llama.cpp by the compiler that is there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MENDED, WITHOUT = "-include", "-mno-amx-tile"
OF_THE_MAKE_THAT_RUNS = ("CFLAGS", "CXXFLAGS", "MAKEFLAGS")


@pytest.mark.parametrize(
    ("macros", "flag"),
    [
        (["__GNUC__ 12", "__AMX_INT8__ 1"], MENDED),
        (["__GNUC__ 13", "__AMX_INT8__ 1"], WITHOUT),
        (["__GNUC__ 4", "__AMX_INT8__ 1", "__clang__ 1"], WITHOUT),
        (["__GNUC__ 12"], ""),
    ],
)
def test_amx_is_compiled_where_tried(macros: list[str], flag: str, tmp_path: Path):
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\n" + "".join(f"echo '#define {macro}'\n" for macro in macros))
    compiler.chmod(0o755)
    command = ["make", "--dry-run", "--print-data-base", "clean", f"CXX={compiler}"]
    env = {name: value for name, value in os.environ.items() if name not in OF_THE_MAKE_THAT_RUNS}
    told = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout
    [flags] = [line.partition("=")[2] for line in told.splitlines() if line.startswith("CXXFLAGS")] or [""]
    assert (MENDED in flags) == (flag == MENDED)
    assert (WITHOUT in flags) == (flag == WITHOUT)
