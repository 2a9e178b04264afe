"""Leads form one group only if they would give the same reply to a request."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from server.flags import read
from server.lead.serving import lead_group_of
from server.llama.llamacpp import LlamaBackend
from server.llama.options import LlamaOptions
from server.settings import BUNDLED_MODEL, LeadSettings


@dataclass
class Opened:
    """What lead_group_of() reads of a backend."""

    options: LlamaOptions
    n_ctx: int = 4096
    chat_template: str | None = None


def group_of(*flags: str, **opened: Any) -> str:
    backend = Opened(LlamaOptions(BUNDLED_MODEL, n_cells=4096, n_seqs=4), **opened)
    return lead_group_of(read(LeadSettings, flags), cast(LlamaBackend, backend))


def test_settings_of_replies_decide_the_lead_group(tmp_path: Path):
    red, blue = tmp_path / "red.gguf", tmp_path / "blue.gguf"
    red.write_bytes(b"GGUF red")
    blue.write_bytes(b"GGUF blue")
    groups = [
        group_of(),
        group_of("--temp", "0.3"),
        group_of("--mmproj", str(red)),
        group_of("--mmproj", str(blue)),
        group_of("--mmproj", str(red), "--allow-remote-images"),
        group_of(n_ctx=2048),
        group_of(chat_template="{{ messages }}"),
    ]
    assert len(set(groups)) == len(groups)
    copy = tmp_path / "elsewhere.gguf"
    copy.write_bytes(red.read_bytes())
    assert group_of("--mmproj", str(copy), "--port", "1234", "--threads", "7") == groups[2]
