"""Read QR codes as a camera does."""

from __future__ import annotations

import re
from io import BytesIO

import numpy as np
import zxingcpp
from PIL import Image

MODULE = 4  # pixels of a module: enough for a decoder


def codes_in(picture: bytes | Image.Image) -> list[str]:
    """Return the texts of the QR codes in a picture."""
    image = picture if isinstance(picture, Image.Image) else Image.open(BytesIO(picture))
    return [code.text for code in zxingcpp.read_barcodes(image.convert("L"))]


def codes_on_terminal(text: str) -> list[str]:
    """Return the texts of the QR codes in lines of half blocks, white on black."""
    rows: list[list[bool]] = []
    for line in re.findall("\x1b\\[97;40m(.*)\x1b\\[0m", text):
        rows += [[one in "█▀" for one in line], [one in "█▄" for one in line]]
    light = np.kron(np.array(rows, np.uint8), np.full((MODULE, MODULE), 255, np.uint8))
    return codes_in(Image.fromarray(light))
