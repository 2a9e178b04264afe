"""A model file with a template of its own for tools."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import gguf
import numpy as np
import pytest

from benchmarks.gguf_file import GGUFSource
from drafters.drafter_settings import BUNDLED_MODEL
from server.flags import read
from server.lead.serving import template_of
from server.llama.llamacpp import LlamaBackend
from server.llama.options import LlamaOptions
from server.settings import LeadSettings
from server.text.template import Setting

pytestmark = pytest.mark.model

SAID = "{% for m in messages %}{{ m.content }}{% endfor %}"
TOOL = {"type": "function", "function": {"name": "f"}}


def with_template(path: Path, name: str, text: str) -> Path:
    """Write the bundled draft model with one more chat template."""
    source = GGUFSource(BUNDLED_MODEL)
    writer = gguf.GGUFWriter(path, str(source.field(gguf.Keys.General.ARCHITECTURE)))
    with closing(writer):
        source.copy_metadata(writer, {})
        writer.add_string(f"tokenizer.chat_template.{name}", text)
        for tensor in source.names:
            writer.add_tensor(tensor, np.ascontiguousarray(source.values(tensor)))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    return path


def test_conversations_with_tools_have_their_template(tmp_path: Path):
    path = with_template(tmp_path / "model.gguf", "tool_use", "tools: {{ tools | tojson }}" + SAID)
    with closing(LlamaBackend(LlamaOptions(path, 256, 1, n_threads=1))) as backend:
        own = template_of(read(LeadSettings, []), backend)
        given = template_of(read(LeadSettings, ["--chat-template", SAID]), backend)
    hello = [{"role": "user", "content": "hello"}]
    assert own.render(hello) != "hello"
    assert "tools" not in own.render(hello)
    assert own.render(hello, Setting([TOOL])).startswith('tools: [{"type": "function"')
    assert given.render(hello) == "hello"
    assert "tools: [" not in given.render(hello, Setting([TOOL]))
