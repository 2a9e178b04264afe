from __future__ import annotations

from pathlib import Path

import pytest

from server.errors import StartupError
from server.llama.parts import model_name, parts, siblings


def written(folder: Path, *names: str) -> list[Path]:
    for name in names:
        (folder / name).write_bytes(b"GGUF and so on")
    return [folder / name for name in names]


def test_a_file_is_its_only_part(tmp_path: Path):
    [whole] = written(tmp_path, "m.gguf")
    assert parts(whole) == [whole]


@pytest.mark.parametrize("given", [0, 1, 2])
def test_any_part_leads_to_all_of_them(tmp_path: Path, given: int):
    names = [f"m-{number:05d}-of-00003.gguf" for number in (1, 2, 3)]
    paths = written(tmp_path, *names)
    assert parts(paths[given]) == paths
    assert model_name(paths[given]) == "m"


def test_missing_parts_are_named(tmp_path: Path):
    [first] = written(tmp_path, "m-00001-of-00006.gguf")
    with pytest.raises(StartupError, match=r"m-00002-of-00006\.gguf.*00004-of-00006\.gguf and 2 more"):
        parts(first)


def test_nothing_there_and_something_else_there(tmp_path: Path):
    with pytest.raises(StartupError, match="no model file at"):
        parts(tmp_path / "absent.gguf")
    with pytest.raises(StartupError, match="no model file at"):
        parts(tmp_path / "absent-00001-of-00002.gguf")
    (tmp_path / "text.gguf").write_text("once upon a time")
    with pytest.raises(StartupError, match="is not a GGUF file"):
        parts(tmp_path / "text.gguf")


def test_names_that_only_look_like_parts():
    assert siblings("m-00001-of-2.gguf") == ["m-00001-of-2.gguf"]
    assert siblings("m-00002-of-00002.GGUF") == ["m-00001-of-00002.GGUF", "m-00002-of-00002.GGUF"]
    assert model_name(Path("/models/m.v1.gguf")) == "m.v1"
