"""Sounds of clients: what is read, and what is refused and why."""

from __future__ import annotations

import base64
import struct
from typing import Any

import numpy as np
import pytest

from server.errors import FieldError, InvalidRequestError
from server.pictures.pixels import MAX_FILE_BYTES
from server.pictures.sounds import LOUDEST, MAX_LOST, MAX_SECONDS, Sound, check_samples, sound_file
from tests.server.pictures.recorded import MP3_FRAME, recorded, silent_mp3, wav_of

PLACE = "messages.0.content.1.input_audio"
SAMPLES = np.linspace(-1, 1, 4000, dtype=np.float32)
HEAD = 44  # bytes of a plain WAV in front of its samples


def given(file: bytes, form: str = "wav") -> dict[str, str]:
    return {"data": base64.b64encode(file).decode(), "format": form}


def read(file: bytes, form: str = "wav") -> bytes:
    return sound_file(given(file, form), PLACE)


def refusal(what: Any) -> FieldError:
    with pytest.raises(FieldError) as raised:
        sound_file(what, PLACE)
    return raised.value


@pytest.mark.parametrize("rate", [8000, 16_000, 44_100, 192_000])
@pytest.mark.parametrize("channels", [1, 2])
def test_plain_wavs_stay_as_they_are(rate: int, channels: int):
    file = recorded(rate, channels)
    assert read(file) == file


def test_other_chunks_are_left_out():
    more = struct.pack("<4sI", b"LIST", 3) + b"abc\0" + struct.pack("<4sI", b"data"[::-1], 0)
    assert read(wav_of(SAMPLES, more=more)) == wav_of(SAMPLES)


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF])
def test_wavs_of_unknown_length_are_whole(size: int):
    file = bytearray(wav_of(SAMPLES))
    struct.pack_into("<I", file, HEAD - 4, size)
    assert read(bytes(file)) == wav_of(SAMPLES)


def test_extensible_wavs_are_read():
    data = SAMPLES.tobytes()
    form = struct.pack("<HHIIHHHHIH", 0xFFFE, 1, 16_000, 64_000, 4, 32, 22, 32, 4, 3) + bytes(14)
    body = (
        b"WAVE"
        + struct.pack("<4sI", b"fmt ", len(form))
        + form
        + struct.pack("<4sI", b"data", len(data))
        + data
    )
    assert read(struct.pack("<4sI", b"RIFF", len(body)) + body) == wav_of(SAMPLES)


def changed(at: int, form: str, value: int) -> bytes:
    file = bytearray(recorded())
    struct.pack_into(form, file, at, value)
    return bytes(file)


@pytest.mark.parametrize(
    ("file", "why"),
    [
        (b"", "begins otherwise"),
        (b"RIFF", "begins otherwise"),
        (recorded()[:12], "has no samples"),
        (recorded()[:-1], "cut off"),
        (recorded()[:HEAD], "cut off"),
        (b"RIFF\0\0\0\0WAVEdata\4\0\0\0abcd", "does not say how"),
        (changed(20, "<H", 85), "must be PCM of 8 to 32 bits, or floats"),
        (changed(34, "<H", 12), "must be PCM of 8 to 32 bits, or floats"),
        (changed(22, "<H", 0), "may have 8 channels"),
        (changed(22, "<H", 9), "may have 8 channels"),
        (changed(32, "<H", 0), "cannot take 0 bytes"),
        (changed(24, "<I", 1), "8000 to 192000 samples a second, not 1"),
        (changed(24, "<I", 1 << 31), "8000 to 192000 samples a second"),
        (recorded(seconds=0.05), "takes 0.05 s: send 0.1 to 600 s"),
        (recorded(8000, seconds=MAX_SECONDS + 1), "takes 601.00 s"),
        (wav_of(SAMPLES, more=struct.pack("<4sI", b"junk", 0) * 101), "has no samples"),
    ],
)
def test_wavs_that_are_refused(file: bytes, why: str):
    error = refusal(given(file))
    assert error.param == f"{PLACE}.data"
    assert "not a whole wav within the limits: " in error.message
    assert why in error.message


def test_frames_of_an_mp3_are_kept():
    frames = silent_mp3(10)
    assert read(frames, "mp3") == frames
    tag = b"ID3\4\0\0" + bytes((0, 0, 1, 5)) + bytes(133)
    assert read(tag + frames + b"TAG" + bytes(125), "mp3") == frames
    assert read(frames[:-7], "mp3") == frames[: -len(MP3_FRAME)]
    assert read(frames + b" \xff\xfb\x90 junk" + frames, "mp3") == 2 * frames
    assert read(frames + silent_mp3(1).replace(b"\x90\x64", b"\x94\x64"), "mp3") == frames  # of 48 kHz


@pytest.mark.parametrize(
    ("said", "is_kept"), [(9, True), (10, True), (11, False), (5, False), (1 << 31, False)]
)
def test_lengths_that_an_mp3_says_are_checked(said: int, is_kept: bool):
    told = struct.pack(">4sII", b"Xing", 1, said)
    first = MP3_FRAME[:36] + told + MP3_FRAME[36 + len(told) :]
    rest = silent_mp3(9)
    assert read(first + rest, "mp3") == (first if is_kept else b"") + rest


@pytest.mark.parametrize(
    ("file", "why"),
    [
        (b"", "has no frames"),
        (b"ID3" + bytes(200), "has no frames"),
        (MP3_FRAME[:-1], "has no frames"),
        (recorded(), "has no frames"),
        (silent_mp3(3), "takes 0.08 s"),
        (silent_mp3(24_000), "takes 626.94 s"),
        (b"\xff\xfb\x90\x64" * (MAX_LOST + 2), "too much between its frames"),
    ],
)
def test_mp3s_that_are_refused(file: bytes, why: str):
    error = refusal(given(file, "mp3"))
    assert error.param == f"{PLACE}.data"
    assert why in error.message


@pytest.mark.parametrize(
    ("what", "field", "why"),
    [
        (None, "format", "wav or mp3"),
        ("AAAA", "format", "wav or mp3"),
        ({"data": "AAAA"}, "format", "wav or mp3"),
        ({"data": "AAAA", "format": "flac"}, "format", "wav or mp3"),
        ({"data": "AAAA", "format": ["wav"]}, "format", "wav or mp3"),
        ({"format": "wav"}, "data", "a text in base64"),
        ({"data": 1, "format": "wav"}, "data", "a text in base64"),
        ({"data": "data:audio/wav;base64,AAAA", "format": "wav"}, "data", "the sound's base64"),
        ({"data": "A" * (MAX_FILE_BYTES * 4 // 3 + 8), "format": "wav"}, "data", "a sound may have 20 MiB"),
    ],
)
def test_other_values_are_refused(what: Any, field: str, why: str):
    error = refusal(what)
    assert error.param == f"{PLACE}.{field}"
    assert why in error.message


def test_samples_are_numbers_within_reason():
    for most, is_fine in (
        (1.0, True),
        (LOUDEST, True),
        (2 * LOUDEST, False),
        (np.inf, False),
        (np.nan, False),
    ):
        sound = Sound(16_000, np.array([0.0, -most], np.float32).tobytes())
        if is_fine:
            check_samples(sound)
        else:
            with pytest.raises(InvalidRequestError, match="no numbers, or far above full scale"):
                check_samples(sound)
