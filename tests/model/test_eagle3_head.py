"""An EAGLE-3 head is known by its file, drafts in the lead, and is refused where it cannot."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from benchmarks.with_block import BLOCK, join
from drafters.drafter_settings import DrafterSettings
from drafters.kinds import assemble
from server.errors import StartupError
from server.lead.loading import drafting_inside, head_of, load_target, prepared
from server.lead.tiers import fingerprint
from server.llama import eagle3, target_rows
from server.llama.eagle3 import LlamaHead
from server.llama.llamacpp import LlamaBackend, LlamaOptions
from server.llama.with_block import WithBlock
from server.local.up import _for_drafters, _join_command  # pyright: ignore[reportPrivateUsage]
from server.settings import BUNDLED_DRAFT, BUNDLED_MODEL, LeadSettings, UpSettings

pytestmark = pytest.mark.model

HEAD = BLOCK.with_name("duo-tiny-eagle3-q8_0.gguf")


@pytest.fixture(scope="module")
def target() -> Iterator[LlamaBackend]:
    with closing(LlamaBackend(LlamaOptions(BUNDLED_MODEL, n_cells=256, n_seqs=2))) as backend:
        yield backend


def changed(path: Path, *, layers: tuple[int, ...] = (2, 5, 7), width: int = 512, last: str = "") -> Path:
    """Return the head's file with other metadata.

    width: of the target. last: text of the last token.
    """
    source = gguf.GGUFReader(HEAD)
    with closing(gguf.GGUFWriter(path, "eagle3")) as writer:
        for name, field in source.fields.items():
            if name.startswith(("GGUF.", "general.architecture")):
                continue
            value: Any = field.contents()
            if name == "eagle3.target_layers":
                value = list(layers)
            if name == "eagle3.target_hidden_size":
                value = width
            if name == "tokenizer.ggml.tokens" and last:
                value = [*value[:-1], last]
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, value, field.types[0], sub_type=inner)
        for tensor in source.tensors:
            data = np.array(tensor.data)
            if tensor.name == "fc.weight":
                data = data[:, : data.shape[1] * width // 512].copy()
            writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    return path


def test_head_is_recognised_and_drafts():
    for mode in ("auto", "async"):
        settings = prepared(LeadSettings.model_validate({"draft_model": HEAD, "draft_mode": mode}))
        assert (settings.draft_mode, head_of(settings)) == ("sync", HEAD)
    assert prepared(LeadSettings.model_validate({"draft_model": HEAD, "draft_max": 0})).draft_model is None
    assert prepared(LeadSettings.model_validate({"draft_model": BUNDLED_DRAFT})).draft_mode == "auto"


def test_drafters_do_not_join_head():
    head = UpSettings.model_validate({"draft_model": HEAD})
    assert "--model" not in _join_command(head, "redis://x", _for_drafters(head, HEAD))
    draft = UpSettings.model_validate({"draft_model": BUNDLED_DRAFT})
    assert f"--model {BUNDLED_DRAFT.name}" in _join_command(
        draft, "redis://x", _for_drafters(draft, BUNDLED_DRAFT)
    )


def test_head_replaces_a_block(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    join(BUNDLED_MODEL, BLOCK, tmp_path / "joined.gguf")
    given = {"model": tmp_path / "joined.gguf", "draft_model": HEAD, "ctx_size": 256}
    settings = prepared(LeadSettings.model_validate(given))
    with ExitStack() as stack:
        backend = stack.enter_context(closing(load_target(settings, 1)))
        assert backend.model.n_blocks == 1
        model, inline = drafting_inside(stack, settings, settings.draft_model, backend)
        assert isinstance(model, WithBlock)
        assert isinstance(model.block, LlamaHead)
        assert inline is not None
        assert inline.source == "eagle3"
    said = "the EAGLE-3 head in duo-tiny-eagle3-q8_0.gguf, not the prediction block in the model's file"
    assert said in caplog.text


def test_saved_states_belong_to_head():
    alone = LlamaOptions(BUNDLED_MODEL, 256, 1)
    assert fingerprint(alone) != fingerprint(LlamaOptions(BUNDLED_MODEL, 256, 1, head=HEAD))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ({"width": 256}, "it is for targets of width 256, and this one has 512"),
        ({"layers": (2, 5, 8)}, "it reads layer 8, and the last one is 7"),
        ({"last": "unheard of"}, "token texts differ between ids"),
    ],
)
def test_a_head_of_another_target_is_refused(kind: dict[str, object], reason: str, tmp_path: Path):
    head = changed(tmp_path / "other.gguf", **kind)  # pyright: ignore[reportArgumentType]
    settings = prepared(LeadSettings.model_validate({"draft_model": head, "ctx_size": 256}))
    with ExitStack() as stack:
        backend = stack.enter_context(closing(load_target(settings, 1)))
        with pytest.raises(StartupError, match=reason) as raised:
            drafting_inside(stack, settings, head, backend)
    assert "\n" not in raised.value.message


def test_layerless_target_is_refused(target: LlamaBackend, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(eagle3, "TARGETS", frozenset({"qwen3"}))
    with pytest.raises(StartupError, match="does not give what the layers of architecture llama read"):
        LlamaHead(target, HEAD)


def test_incapable_build_gives_advice(target: LlamaBackend, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(target_rows, "GGML", object())
    with pytest.raises(
        StartupError, match=r"lacks llama_model_target_layer_ids, .*: install .* leave out"
    ) as raised:
        LlamaHead(target, HEAD)
    assert "\n" not in raised.value.message


def test_drafter_refuses_head_with_advice():
    with ExitStack() as stack, pytest.raises(StartupError, match="to duo serve or duo up with --draft-model"):
        assemble(DrafterSettings.model_validate({"model": HEAD}), stack)
