"""The files that a browser gets to draft with: pinned, and few."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "drafters" / "browser"
PINNED = {
    "wllama.js": "29e4320f49c2d7a5b55233146d80f32a0b92443d8594fa88f06efa72f18238fa",
    "wllama-single.wasm": "529c780d43cb57cb9ac7ef4c42e16463afb0b2dec4ecaae9a6df8179c435fd71",
    "wllama-multi.wasm": "c700d3d40bf9055c02a3184f9fea421fa0cbff0ecdae9b6c824e889d5a87da9e",
}
"""SHA-256 of files of @wllama/wllama 2.3.7, as npm has them."""


@pytest.mark.parametrize("name", PINNED)
def test_vendored_files_are_as_published(name: str):
    assert hashlib.sha256((PAGE / "vendor" / name).read_bytes()).hexdigest() == PINNED[name]


def test_vendored_files_have_a_licence():
    assert {path.name for path in (PAGE / "vendor").iterdir()} == {*PINNED, "LICENSES.txt"}
    assert "MIT License" in (PAGE / "vendor" / "LICENSES.txt").read_text()


def test_own_code_is_small():
    own = [path for path in PAGE.iterdir() if path.is_file()]
    assert 0 < sum(path.stat().st_size for path in own) <= 20_000
