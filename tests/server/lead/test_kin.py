"""Leads are of one kin only if they would give the same reply to a request."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from server.flags import read
from server.lead.serving import kin_of
from server.llama.llamacpp import LlamaBackend
from server.llama.options import LlamaOptions
from server.settings import BUNDLED_MODEL, LeadSettings


@dataclass
class Opened:
    """What kin_of() reads of a backend."""

    options: LlamaOptions
    n_ctx: int = 4096
    chat_template: str | None = None


def kin(*flags: str, **opened: Any) -> str:
    backend = Opened(LlamaOptions(BUNDLED_MODEL, n_cells=4096, n_seqs=4), **opened)
    return kin_of(read(LeadSettings, flags), cast(LlamaBackend, backend))


def test_kin_depends_on_what_replies_do(tmp_path: Path):
    red, blue = tmp_path / "red.gguf", tmp_path / "blue.gguf"
    red.write_bytes(b"GGUF red")
    blue.write_bytes(b"GGUF blue")
    kins = [
        kin(),
        kin("--temp", "0.3"),
        kin("--mmproj", str(red)),
        kin("--mmproj", str(blue)),
        kin("--mmproj", str(red), "--allow-remote-images"),
        kin(n_ctx=2048),
        kin(chat_template="{{ messages }}"),
    ]
    assert len(set(kins)) == len(kins)
    copy = tmp_path / "elsewhere.gguf"
    copy.write_bytes(red.read_bytes())
    assert kin("--mmproj", str(copy), "--port", "1234", "--threads", "7") == kins[2]
