"""Data URLs to pixels: four formats, and one precise refusal of everything else."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.errors import FieldError
from server.pictures.pixels import MAX_FILE_BYTES, MAX_SIDE, Pixels, pixels_of
from tests.server.pictures.drawn import MEDIA, drawn, file_of, url_of

PLACE = "messages.0.content.1.image_url"
RED = Pixels(6, 4, bytes((255, 0, 0)) * 24)


def refused(url: Any, why: str) -> None:
    with pytest.raises(FieldError, match=why) as error:
        pixels_of(url, PLACE)
    assert error.value.param == PLACE
    assert "\n" not in error.value.message


@pytest.mark.parametrize("format", MEDIA)
def test_four_formats_are_read(format: str):
    found = pixels_of(url_of(file_of(drawn(), format), MEDIA[format]), PLACE)
    assert (found.width, found.height) == (6, 4)
    assert all(abs(a - b) < 4 for a, b in zip(found.data, RED.data, strict=True))


@pytest.mark.parametrize("mode", ["L", "P", "1", "LA", "RGBA", "CMYK", "I;16"])
def test_every_mode_becomes_colours(mode: str):
    format = "JPEG" if mode == "CMYK" else "PNG"
    assert len(pixels_of(url_of(file_of(drawn("white", mode="RGB").convert(mode), format)), PLACE).data) == 72


@pytest.mark.parametrize("grey", [0, 2, 128, 255])
def test_sixteen_bit_grey_keeps_its_brightness(grey: int):
    deep = drawn(grey * 256 + 7, mode="I;16")
    assert pixels_of(url_of(file_of(deep)), PLACE).data == bytes((grey,)) * 72


def test_clear_parts_are_white():
    clear = drawn(mode="RGBA").copy()
    clear.putalpha(0)
    assert pixels_of(url_of(file_of(clear)), PLACE).data == bytes((255,)) * 72


def test_the_first_frame_is_read():
    moving = file_of(drawn(), "GIF", save_all=True, append_images=[drawn("blue")])
    assert pixels_of(url_of(moving, "image/gif"), PLACE) == RED


def test_a_turned_photo_is_upright():
    exif = drawn().getexif()
    exif[0x0112] = 6  # orientation: turn by a quarter
    found = pixels_of(url_of(file_of(drawn(), "JPEG", exif=exif), "image/jpeg"), PLACE)
    assert (found.width, found.height) == (4, 6)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("https://example.org/cat.png", "pictures are not fetched: send a data URL"),
        ("file:///etc/hostname", "pictures are not fetched"),
        (None, "pictures are not fetched"),
        (7, "pictures are not fetched"),
        ("data:image/png,AAAA", "not a data URL in base64"),
        ("data:image/png;base64", "not a data URL in base64"),
        ("data:image/png;base64,A*AA", "base64 cannot be decoded"),
        ("data:image/png;base64,é", "base64 cannot be decoded"),
        ("data:image/png;base64,", "not a whole picture in one of the formats PNG, JPEG, WEBP, GIF"),
        ("data:image/png;base64," + "A" * (MAX_FILE_BYTES * 4 // 3 + 8), "a picture may have 20 MiB"),
    ],
    ids=lambda given: str(given)[:40],
)
def test_other_urls_are_refused(url: Any, why: str):
    refused(url, why)


@pytest.mark.parametrize("format", MEDIA)
def test_cut_files_are_refused(format: str):
    whole = file_of(drawn(size=(64, 64)), format)
    for n in (1, 10, len(whole) // 2):
        refused(url_of(whole[:n]), "not a whole picture")


@pytest.mark.parametrize("format", MEDIA)
def test_damaged_files_are_pixels_or_refused(format: str):
    whole = file_of(drawn(size=(24, 16)).effect_spread(3), format)
    kinds = set[type[object]]()

    @settings(max_examples=100, database=None, deadline=None)
    @given(st.integers(0, len(whole)), st.integers(0, 9), st.binary(max_size=9))
    def read(at: int, n: int, new: bytes) -> None:
        try:
            found = pixels_of(url_of(whole[:at] + new + whole[at + n :]), PLACE)
        except FieldError as error:
            kinds.add(type(error))
        else:
            kinds.add(type(found))
            assert len(found.data) == 3 * found.width * found.height

    read()
    assert kinds == {FieldError, Pixels}


def test_other_formats_are_refused():
    for format in ("BMP", "TIFF", "ICO", "PPM"):
        refused(url_of(file_of(drawn(size=(16, 16)), format)), "not a whole picture")
    refused(
        url_of(b"%PDF-1.7 and so on"),
        "not a whole picture in one of the formats PNG, JPEG, WEBP, GIF: it begins otherwise",
    )


def with_size(png: bytes, width: int, height: int) -> bytes:
    """Return a PNG file whose header tells another size."""
    header = png[12:16] + struct.pack(">II", width, height) + png[24:29]
    return png[:12] + header + struct.pack(">I", zlib.crc32(header)) + png[33:]


def test_sizes_are_checked_before_decoding():
    png = file_of(drawn())
    assert pixels_of(url_of(with_size(png, 6, 4)), PLACE) == RED
    for width, height in ((MAX_SIDE + 1, MAX_SIDE), (8000, 8000), (1 << 30, 1 << 30), (6, 6 * 33)):
        refused(url_of(with_size(png, width, height)), "the picture has|not a whole picture")
    refused(url_of(with_size(png, 8000, 8000)), "8000 x 8000 pixels: send one with at most 8192 on a side")
    refused(url_of(with_size(png, 4000, 4000)), "not a whole picture")
