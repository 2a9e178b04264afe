"""Sounds' files: what a real projector makes of them is what llama.cpp makes of the same files."""

from __future__ import annotations

import base64
import ctypes
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server.errors import InvalidRequestError
from server.pictures.registry import Pictures
from server.pictures.sounds import MAX_SECONDS, sound_file
from server.pictures.vocabulary import PictureVocabulary
from tests.model.conftest import open_exact
from tests.model.kinds import QWEN3
from tests.model.projectors import ULTRAVOX, write_projector
from tests.model.random_models import write
from tests.model.test_pictures import RATE, Scene, mtmd, open_projector, sound
from tests.server.api.test_sounds import damaged_sound
from tests.server.pictures.recorded import recorded, silent_mp3, wav_of

pytestmark = pytest.mark.model
assert mtmd  # a fixture


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, mtmd: Any) -> Iterator[Scene]:
    folder: Path = tmp_path_factory.mktemp("sounds")
    write(folder / "model.gguf", QWEN3)
    write_projector(folder / "projector.gguf", ULTRAVOX)
    with (
        closing(open_exact(folder / "model.gguf")) as target,
        closing(open_projector(folder / "projector.gguf", target)) as encoder,
    ):
        pictures = Pictures(encoder)
        target.vocab = PictureVocabulary(target.vocab, pictures)
        yield Scene(target, target, encoder, pictures)


def test_long_sounds_take_more_rows(scene: Scene):
    counts = [len(scene.pictures.of(sound(3, s), lambda n: None).ids) for s in (2.0, 31.0)]
    assert counts == [30, 60]


def test_sound_files_equal_llama_cpps(scene: Scene, mtmd: Any):
    for file, form in ((recorded(44_100, 2), "wav"), (recorded(RATE, 1), "wav"), (silent_mp3(40), "mp3")):
        given = {"data": base64.b64encode(file).decode(), "format": form}
        own = scene.projector.sound(sound_file(given, "place"))
        handle: Any = scene.projector._handle  # pyright: ignore[reportPrivateUsage]
        data = (ctypes.c_uint8 * len(file)).from_buffer_copy(file)
        bitmap = mtmd.mtmd_helper_bitmap_init_from_buf(handle, data, len(file), False)
        n = mtmd.mtmd_bitmap_get_n_bytes(bitmap)
        assert own.data == ctypes.string_at(mtmd.mtmd_bitmap_get_data(bitmap), n)
        mtmd.mtmd_bitmap_free(bitmap)
        assert own.rate == RATE


@pytest.mark.parametrize("form", ["wav", "mp3"])
def test_damaged_sounds_are_read_or_refused(scene: Scene, form: str):
    """The decoder of libmtmd reads what the checks let through."""
    n_read, n_refused = 0, 0
    for seed in range(400):
        given = {"data": base64.b64encode(damaged_sound(form, seed)).decode(), "format": form}
        try:
            found = scene.projector.sound(sound_file(given, "place"))
        except InvalidRequestError:
            n_refused += 1
        else:
            n_read += 1
            assert len(found.data) <= 4 * RATE * MAX_SECONDS
    assert min(n_read, n_refused) > 40


def test_sounds_that_are_no_numbers_are_refused(scene: Scene):
    loud = np.full(RATE, np.inf, np.float32), np.full(RATE, 1e30, np.float32)
    for samples in loud:
        file = sound_file({"data": base64.b64encode(wav_of(samples)).decode(), "format": "wav"}, "place")
        with pytest.raises(InvalidRequestError, match="samples that are no numbers"):
            scene.pictures.of_sound(file, lambda n: None)
