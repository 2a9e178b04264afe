"""Check sounds that clients send, WAV and MP3 in base64, and pass only checked bytes to a decoder.

A WAV gets a new header; of an MP3 only whole frames are passed on. So the number of bytes alone determines
the length of the decoded sound, and both are checked here.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np

from server.errors import FieldError, InvalidRequestError
from server.pictures.pixels import base64_bytes

FORMATS = ("wav", "mp3")
MIN_SECONDS, MAX_SECONDS = 0.1, 600
"""Seconds of a sound: OpenAI's minimum, and 20 times what a Whisper encoder reads at once."""
MIN_SAMPLE_RATE, MAX_SAMPLE_RATE = 8000, 192_000  # samples a second: of a telephone, of a studio
MAX_CHANNELS = 8
MAX_CHUNKS = 100  # chunks of a WAV before its samples: a few are usual
MAX_LOST = 10_000  # places in an MP3 that only look like a frame's start: searching takes 1 µs each
BYTES_A_SAMPLE = 4  # once decoded: a 32-bit float
LOUDEST = 1e4  # maximum of a sample, where full scale is 1.0: larger ones make infinite rows
_PCM, _FLOATS, _EXTENSIBLE = 1, 3, 0xFFFE
_BITS = {_PCM: (8, 16, 24, 32), _FLOATS: (32, 64)}  # bits of a WAV's sample
_UNKNOWN_SIZES = (0, 0xFFFFFFFF)  # sizes that a program writes before it knows the number of samples

_FRAME = re.compile(rb"\xff[\xe2\xe3\xf2\xf3\xfa\xfb][\x10-\xef]")
_BITRATES = (  # kbit/s of a frame, by version (MPEG 1; 2 and 2.5) and index
    (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
)
_MPEG_1 = 3
_SIDES = {(True, False): 32, (True, True): 17, (False, False): 17, (False, True): 9}
"""Bytes of a frame's side information, by whether it is MPEG 1 and whether it is mono."""
_RATES = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}  # by version


@dataclass(frozen=True, slots=True)
class Sound:
    """A decoded sound."""

    rate: int  # samples a second
    data: bytes  # samples of one channel, 32-bit floats

    @property
    def size(self) -> str:
        return f"{len(self.data) // BYTES_A_SAMPLE} samples, {self.rate} a second"


class _Kind(NamedTuple):
    """Properties that all frames of an MP3 share."""

    version: int
    rate: int
    is_mono: bool


@dataclass(frozen=True, slots=True)
class _Frame:
    """A frame of an MP3: its place in the file, and its kind."""

    start: int
    end: int
    kind: _Kind

    @property
    def n_samples(self) -> int:
        return 1152 if self.kind.version == _MPEG_1 else 576


def sound_place(message: int, part: int) -> str:
    """Return the field of the sound in a part of a message, both given by index. Errors name the field."""
    return f"messages.{message}.content.{part}.input_audio"


def sound_file(given: Any, place: str) -> bytes:
    """Return a client's sound as a file that a decoder can be given.

    Args:
        given: The client's `input_audio`: data in base64, and a format.
        place: The field that errors name.

    Raises:
        FieldError: This is no sound of FORMATS within the limits.
    """
    fields = cast(dict[str, Any], given) if isinstance(given, dict) else {}
    text, form = fields.get("data"), fields.get("format")
    if form not in FORMATS:
        raise FieldError(f"{place}.format", f"a sound's format is {' or '.join(FORMATS)}")
    if not isinstance(text, str):
        raise FieldError(f"{place}.data", "a sound's data are a text in base64")
    data = base64_bytes(text, f"{place}.data", "sound")
    try:
        return _checked_wav(data) if form == "wav" else _checked_mp3(data)
    except ValueError as error:
        raise FieldError(f"{place}.data", f"not a whole {form} within the limits: {error}") from None


def check_samples(sound: Sound) -> None:
    """Raise InvalidRequestError if a sample is no number, or exceeds LOUDEST."""
    samples = np.frombuffer(sound.data, np.float32)
    if not (np.abs(samples) <= LOUDEST).all():
        raise InvalidRequestError("a sound has samples that are no numbers, or far above full scale")


def _check_length(seconds: float) -> None:
    if not MIN_SECONDS <= seconds <= MAX_SECONDS:
        raise ValueError(f"it takes {seconds:.2f} s: send {MIN_SECONDS} to {MAX_SECONDS} s")


# -- WAV ----------------------------------------


def _checked_wav(data: bytes) -> bytes:
    """Return a WAV with the same samples and a plain header. Raises ValueError if it is not supported."""
    header = b""
    for name, body in _chunks(data):
        if name == b"fmt ":
            header = body
        elif name == b"data":
            return _plain_wav(header, body)
    raise ValueError("it has no samples")


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield (name, bytes) of a WAV's chunks, at most MAX_CHUNKS. Raises ValueError if it is damaged."""
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        raise ValueError("it begins otherwise")
    at = 12
    for _ in range(MAX_CHUNKS):
        if at + 8 > len(data):
            return
        name, size = struct.unpack_from("<4sI", data, at)
        at += 8
        if name == b"data" and size in _UNKNOWN_SIZES:
            size = len(data) - at
        if at + size > len(data):
            raise ValueError("it is cut off")
        yield name, data[at : at + size]
        at += size + size % 2


def _plain_wav(header: bytes, samples: bytes) -> bytes:
    """Return a WAV of these samples with a plain header of 44 bytes.

    header: The chunk "fmt " of the given WAV. Raises ValueError if it is not supported.
    """
    if len(header) < 16:
        raise ValueError("it does not say how its samples are written")
    kind, channels, rate, _, align, bits = struct.unpack_from("<HHIIHH", header)
    if kind == _EXTENSIBLE and len(header) >= 26:
        kind = struct.unpack_from("<H", header, 24)[0]
    if bits not in _BITS.get(kind, ()):
        raise ValueError("its samples must be PCM of 8 to 32 bits, or floats")
    if not 1 <= channels <= MAX_CHANNELS:
        raise ValueError(f"it may have {MAX_CHANNELS} channels, not {channels}")
    if align != channels * bits // 8:
        raise ValueError(f"samples of {channels} channels cannot take {align} bytes")
    if not MIN_SAMPLE_RATE <= rate <= MAX_SAMPLE_RATE:
        raise ValueError(f"it may have {MIN_SAMPLE_RATE} to {MAX_SAMPLE_RATE} samples a second, not {rate}")
    n = len(samples) // align * align
    _check_length(n / align / rate)
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, kind, channels, rate, rate * align, align, bits)
    return b"".join(
        (struct.pack("<4sI4s", b"RIFF", 36 + n, b"WAVE"), form, struct.pack("<4sI", b"data", n), samples[:n])
    )


# -- MP3 ----------------------------------------


def _checked_mp3(data: bytes) -> bytes:
    """Return the whole frames of an MP3. Raises ValueError if it has none, or lasts too short or too long."""
    frames = list(_frames(data))
    if frames and _says_another_length(data, frames):
        del frames[0]
    if not frames:
        raise ValueError("it has no frames of MPEG layer III")
    first = frames[0]
    _check_length(len(frames) * first.n_samples / first.kind.rate)
    return b"".join(data[frame.start : frame.end] for frame in frames)


def _frames(data: bytes) -> Iterator[_Frame]:
    """Yield the frames that touch another frame or the file's end. Raises ValueError beyond MAX_LOST."""
    at = _tag_size(data)
    kind, end, n_lost = None, -1, 0
    while (found := _FRAME.search(data, at)) is not None:
        start = found.start()
        frame = _frame_at(data, start, kind)
        if frame is not None and (start == end or _ends_well(data, frame)):
            kind, at, end = frame.kind, frame.end, frame.end
            yield frame
            continue
        at, n_lost = start + 1, n_lost + 1
        if n_lost > MAX_LOST:
            raise ValueError("it has too much between its frames")


def _ends_well(data: bytes, frame: _Frame) -> bool:
    return frame.end == len(data) or _frame_at(data, frame.end, frame.kind) is not None


def _frame_at(data: bytes, start: int, kind: _Kind | None) -> _Frame | None:
    """Return the whole frame that begins at `start`, None if there is none or if it has another kind.

    kind: The kind of the frames before it; None: any.
    """
    head = data[start : start + 4]
    if len(head) < 4 or not _FRAME.match(head) or head[2] >> 2 & 3 == 3:
        return None
    version = head[1] >> 3 & 3
    is_old = version == _MPEG_1
    found = _Kind(version, _RATES[version][head[2] >> 2 & 3], head[3] >> 6 == 3)
    bitrate = _BITRATES[not is_old][(head[2] >> 4) - 1]
    end = start + (144 if is_old else 72) * bitrate * 1000 // found.rate + (head[2] >> 1 & 1)
    return _Frame(start, end, found) if end <= len(data) and kind in (None, found) else None


def _tag_size(data: bytes) -> int:
    """Return the length in bytes of an ID3 tag before the frames, 0 without a tag."""
    if data[:3] != b"ID3" or len(data) < 10:
        return 0
    a, b, c, d = (byte & 0x7F for byte in data[6:10])
    return 10 + (a << 21 | b << 14 | c << 7 | d) + (10 if data[5] & 0x10 else 0)


def _says_another_length(data: bytes, frames: list[_Frame]) -> bool:
    """Return True if the first frame is a header (Xing or Info) that states a wrong number of frames."""
    first = frames[0]
    has_sum = not data[first.start + 1] & 1
    side = _SIDES[first.kind.version == _MPEG_1, first.kind.is_mono]
    at = first.start + 4 + 2 * has_sum + side
    name, flags, n = struct.unpack_from(">4sII", data.ljust(at + 12, b"\0"), at)
    if name not in (b"Xing", b"Info"):
        return False
    return len(frames) < 2 or bool(flags & 1 and not 0 <= len(frames) - n <= 1)
