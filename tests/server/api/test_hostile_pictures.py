"""Pictures that somebody damaged: each is read or is a 400, soon and within memory, and the lead lives."""

from __future__ import annotations

import resource
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from random import Random

import pytest

from server.pictures.pixels import MAX_PIXELS, Pixels
from server.pictures.sounds import Sound
from tests.http_lead import Lead
from tests.server.api.test_pictures import RED, answered, asking, post, seeing, seen, text
from tests.server.pictures.drawn import MEDIA, Painter, drawn, file_of, url_of

SEEDS = 40  # of each format
MOST_S = 5.0  # seconds for an answer: a picture of MAX_PIXELS takes 1 s on one core
MOST_BYTES = 16 * MAX_PIXELS  # of memory beyond what a lead has: four copies, four bytes a pixel
Change = Callable[[bytearray, Random], None]


def cut(data: bytearray, random: Random) -> None:
    del data[random.randrange(len(data)) :]


def flip(data: bytearray, random: Random) -> None:
    for _ in range(random.choice((1, 4, 64))):
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def flip_head(data: bytearray, random: Random) -> None:
    """Change bytes of the first 64, where sizes and tables are."""
    for _ in range(random.choice((1, 2, 8))):
        data[random.randrange(min(64, len(data)))] = random.randrange(256)


def enlarge(data: bytearray, random: Random) -> None:
    """Write a huge number somewhere into the head, as sizes are written, big or little end first."""
    at, size = random.randrange(4, 48), random.choice((2, 4))
    number = (
        random.choice((0xFFFF, 0x7FFF, 8192, 5000)) if size == 2 else random.choice((1 << 31, 5000, 1 << 16))
    )
    order = random.choice("<>")
    data[at : at + size] = struct.pack(order + ("H" if size == 2 else "I"), number)


def repeat(data: bytearray, random: Random) -> None:
    start = random.randrange(len(data))
    part = data[start : start + random.randrange(1, 400)]
    data[start:start] = part * random.choice((1, 3, 200))


def exchange(data: bytearray, random: Random) -> None:
    """Begin as another format does."""
    heads = (
        b"\x89PNG\r\n\x1a\n",
        b"\xff\xd8\xff\xe0",
        b"RIFF\xff\xff\xff\xffWEBP",
        b"GIF89a",
        b"BM",
        b"%PDF",
    )
    head = random.choice(heads)
    data[: len(head)] = head


def mend(data: bytearray, random: Random) -> None:
    """Make the sums of a PNG's parts right again, so that a reader goes on."""
    at = 8
    while data.startswith(b"\x89PNG") and at + 12 <= len(data):
        n = int.from_bytes(data[at : at + 4], "big")
        end = at + 8 + n
        if end + 4 > len(data):
            return
        data[end : end + 4] = zlib.crc32(data[at + 4 : end]).to_bytes(4, "big")
        at = end + 4


CHANGES: tuple[Change, ...] = (cut, flip, flip_head, enlarge, repeat, exchange)


def originals(format: str) -> list[bytes]:
    """Return valid pictures: a plain one, one with all kinds of pixels, and a long one."""
    noise = drawn(size=(64, 48)).effect_spread(9)
    found = [file_of(drawn(), format), file_of(noise, format), file_of(drawn(size=(300, 10)), format)]
    if format == "PNG":
        found += [file_of(noise.convert(mode), format) for mode in ("P", "RGBA", "1")]
    if format in ("GIF", "WEBP", "PNG"):
        frames = [drawn("blue", (64, 48)), drawn("green", (64, 48))]
        found.append(file_of(noise, format, save_all=True, append_images=frames))
    if format == "JPEG":
        found.append(file_of(noise, format, progressive=True))
    return found


def damaged(format: str) -> Iterator[bytes]:
    """Yield pictures of this format with one to three changes, the same ones in each run."""
    known = originals(format)
    for seed in range(SEEDS):
        random = Random(f"{format} {seed}")
        data = bytearray(random.choice(known))
        for _ in range(random.randrange(1, 4)):
            if data:
                random.choice(CHANGES)(data, random)
        if random.random() < 0.5:
            mend(data, random)
        yield bytes(data)


class Careful(Painter):
    """Checks that only whole pictures within the limits come as far as a projector."""

    def parts(self, given: Pixels | Sound, check: Callable[[int], None]):
        assert isinstance(given, Pixels)
        assert 0 < given.width * given.height <= MAX_PIXELS
        assert len(given.data) == 3 * given.width * given.height
        return super().parts(given, check)


@pytest.fixture(scope="module")
def lead() -> Iterator[Lead]:
    with seeing(Careful()) as one:
        yield one


@pytest.mark.parametrize("format", MEDIA)
def test_no_picture_ends_a_lead(lead: Lead, format: str):
    statuses = set[int]()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for data in damaged(format):
        began = time.perf_counter()
        response = post(lead, asking(text("a"), seen(url_of(data, MEDIA[format])), text("b")), max_tokens=1)
        assert time.perf_counter() - began < MOST_S
        statuses.add(response.status_code)
        if response.status_code == 400:
            error = response.json()["error"]
            assert error["param"] == "messages.0.content.1.image_url"
            assert "\n" not in error["message"]
            assert len(error["message"]) < 400
    assert statuses == {200, 400}
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_BYTES >> 10
    assert answered(lead, asking(text("a"), seen(RED), text("b")), max_tokens=1)


def test_small_files_of_large_pictures(lead: Lead):
    """A few kilobytes of one colour: as many pixels as are allowed, and more."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for side, status in ((5000, 200), (5001, 400), (8192, 400)):
        url = url_of(file_of(drawn("white", (side, side), "1")))
        assert post(lead, asking(seen(url), text("b")), max_tokens=1).status_code == status
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_BYTES >> 10
