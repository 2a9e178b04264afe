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
    """An Encoder: n rows between two tokens. Counts its calls."""

    identity = b"painter"

    def __init__(self, n: int = 20, *, whole: bool = False) -> None:
        self.n, self.whole, self.n_calls = n, whole, 0

    def parts(self, pixels: Pixels, check: Callable[[int], None]) -> list[PicturePart]:
        check(self.n + 2)
        self.n_calls += 1
        rows = np.full((self.n, 4), pixels.data[0], np.float32)
        return [PicturePart((60,)), PicturePart(rows=rows, whole=self.whole), PicturePart((62,))]
