"""Sounds as clients send them."""

from __future__ import annotations

import base64
import io
import struct
import wave
from typing import Any

import numpy as np
import numpy.typing as npt

MP3_FRAME = bytes.fromhex("fffb9064") + bytes(413)  # MPEG 1, 128 kbit/s, 44.1 kHz, joint stereo: silence
MP3_FRAME_S = 1152 / 44_100


def recorded(rate: int = 16_000, channels: int = 1, seconds: float = 0.5, seed: int = 1) -> bytes:
    """Return a WAV with noise of 16 bits."""
    noise = np.random.default_rng(seed).integers(-9000, 9000, int(rate * seconds) * channels)
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(noise.astype("<i2").tobytes())
    return stream.getvalue()


def wav_of(samples: npt.NDArray[np.float32], rate: int = 16_000, more: bytes = b"") -> bytes:
    """Return a WAV with floats, and with other chunks in front of them."""
    data = samples.astype("<f4").tobytes()
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 3, 1, rate, rate * 4, 4, 32)
    body = b"WAVE" + form + more + struct.pack("<4sI", b"data", len(data)) + data
    return struct.pack("<4sI", b"RIFF", len(body)) + body


def tone(hertz: float, seconds: float = 20.0, rate: int = 16_000) -> bytes:
    times = np.arange(int(rate * seconds)) / rate
    return wav_of(np.sin(2 * np.pi * hertz * times).astype(np.float32), rate)


def silent_mp3(n_frames: int = 10) -> bytes:
    return MP3_FRAME * n_frames


def heard(file: bytes, form: str = "wav") -> dict[str, Any]:
    """Return a part of a chat message with this sound."""
    return {
        "type": "input_audio",
        "input_audio": {"data": base64.b64encode(file).decode(), "format": form},
    }
