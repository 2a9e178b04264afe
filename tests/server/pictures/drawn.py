"""Drawn pictures as clients send them, and an encoder without a model."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from server.pictures.picture import PicturePart
from server.pictures.pixels import Pixels
from server.pictures.sounds import Sound

Image: Any = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
MEDIA = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp", "GIF": "image/gif"}


def drawn(colour: str | int = "red", size: tuple[int, int] = (6, 4), mode: str = "RGB") -> Any:
    return Image.new(mode, size, colour)


def file_of(picture: Any, format: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, format, **options)
    return stream.getvalue()


def url_of(data: bytes, media: str = "image/png") -> str:
    return f"data:{media};base64,{base64.b64encode(data).decode()}"


class Painter:
    """An Encoder: n rows between two tokens. Counts its calls.

    What it hears are the bytes of files, without a decoder.
    """

    identity = b"painter"

    def __init__(self, n: int = 20, *, whole: bool = False, sees: bool = True, hears: bool = False) -> None:
        self.n, self.whole, self.sees, self.hears, self.n_calls = n, whole, sees, hears, 0

    def sound(self, file: bytes) -> Sound:
        return Sound(16_000, np.frombuffer(file, np.uint8).astype(np.float32).tobytes())

    def parts(self, given: Pixels | Sound, check: Callable[[int], None]) -> list[PicturePart]:
        check(self.n + 2)
        self.n_calls += 1
        first = given.data[0] if isinstance(given, Pixels) else sum(given.data) % 251
        rows = np.full((self.n, 4), first, np.float32)
        return [PicturePart((60,)), PicturePart(rows=rows, whole=self.whole), PicturePart((62,))]
