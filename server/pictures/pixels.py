"""Read pictures that clients send: data URLs to pixels. All checks of untrusted bytes are here.

Pillow, the only library that sees these bytes, reads four formats. Sizes are checked before it decodes.
"""

from __future__ import annotations

import base64
import binascii
import io
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from server.errors import FieldError, StartupError

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
MAX_FILE_BYTES = 20 << 20
"""Maximum bytes of a picture's or sound's file: OpenAI's limit for all pictures was 20 MB."""
MAX_PIXELS = 25_000_000
"""Maximum pixels of a picture: a camera's 24 megapixels. Decoded they take 75 MB."""
MAX_SIDE = 8192
"""Maximum pixels of a side. Projectors that pad a picture to a square take 200 MB for such a side."""
MAX_RATIO = 32
"""Maximum ratio of the sides. Scaled to the 384 pixels of a small projector, the other side keeps 12."""


@dataclass(frozen=True, slots=True)
class Pixels:
    """A decoded picture."""

    width: int
    height: int
    data: bytes  # red, green and blue of each pixel, row by row

    @property
    def size(self) -> str:
        return f"{self.width} x {self.height} pixels"


def picture_place(message: int, part: int) -> str:
    """Return the field of the picture in a part of a message, both given by index. Errors name the field."""
    return f"messages.{message}.content.{part}.image_url"


def check_decoder() -> None:
    """Raise StartupError if Pillow is missing."""
    try:
        import_module("PIL.Image")
    except ImportError as error:
        raise StartupError(f"--mmproj needs Pillow ({error}): install duo's requirements") from error


def pixels_of(url: Any, place: str) -> Pixels:
    """Return the pixels of a picture in a data URL. Slow.

    Args:
        url: The URL.
        place: The field that errors name.

    Raises:
        FieldError: The URL is no data URL, or holds no picture of FORMATS within the limits.
    """
    if not isinstance(url, str) or not url.startswith("data:"):
        raise FieldError(place, "pictures are not fetched: send a data URL (data:image/png;base64,…)")
    header, comma, body = url.partition(",")
    if not comma or not header.endswith(";base64"):
        raise FieldError(place, "not a data URL in base64: send data:image/png;base64,…")
    return _decoded(base64_bytes(body, place, "picture"), place)


def base64_bytes(text: str, place: str, what: str) -> bytes:
    """Decode a client's file from base64. Raises FieldError for the field `place`.

    what: Name of the file in the error: "picture" or "sound".
    """
    if len(text) // 4 * 3 > MAX_FILE_BYTES:
        raise FieldError(place, f"a {what} may have {MAX_FILE_BYTES >> 20} MiB: send a smaller one")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise FieldError(place, f"the {what}'s base64 cannot be decoded: {error}") from None


def _check_size(width: int, height: int, place: str) -> None:
    longer, shorter = max(width, height), min(width, height)
    if longer > MAX_SIDE or width * height > MAX_PIXELS or longer > shorter * MAX_RATIO:
        raise FieldError(
            place,
            f"the picture has {width} x {height} pixels: send one with at most {MAX_SIDE} on a side, "
            f"{MAX_PIXELS // 1_000_000} million in all, and one side at most {MAX_RATIO} times the other",
        )


def _high_byte(grey: Any) -> Any:
    return grey / 256  # not //: Pillow passes an object that lacks it


def _eight_bits(picture: Any) -> Any:
    """Scale a picture's 16-bit greys to 8 bits: Pillow's conversion would make all greys above 255 white."""
    if not picture.mode.startswith("I;16"):
        return picture
    scaled = picture.point(_high_byte, "L")
    scaled.info.pop("transparency", None)  # a grey of 16 bits, wrong after scaling
    return scaled


def _decoded(data: bytes, place: str) -> Pixels:
    library: Any = import_module("PIL.Image")
    transposed: Any = import_module("PIL.ImageOps").exif_transpose
    try:
        with library.open(io.BytesIO(data), formats=FORMATS) as picture:
            width, height = picture.size
            _check_size(width, height, place)
            shown = _eight_bits(transposed(picture))
            if shown.has_transparency_data:
                shown = shown.convert("RGBA")
                flat = library.new("RGB", shown.size, "white")
                flat.paste(shown, mask=shown)
            else:
                flat = shown.convert("RGB")
            return Pixels(flat.width, flat.height, flat.tobytes())
    except FieldError:
        raise
    except Exception as error:  # a decoder of foreign bytes: it may raise anything
        why = "it begins otherwise" if isinstance(error, library.UnidentifiedImageError) else error
        raise FieldError(
            place, f"not a whole picture in one of the formats {', '.join(FORMATS)}: {why}"
        ) from None
