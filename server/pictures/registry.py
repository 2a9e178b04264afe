"""Make pictures from pixels, keep those in use, and find them by their word or the id of a position."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import count
from threading import Lock
from typing import Protocol
from weakref import WeakValueDictionary

from server.engine.request import PictureSpan
from server.errors import InvalidRequestError
from server.llama.backend import PICTURE_IDS
from server.pictures.picture import Picture, PicturePart, ids_of
from server.pictures.pixels import Pixels
from server.pictures.sounds import Sound, check_samples

MAX_KEPT_BYTES = 256 << 20
"""Maximum bytes of rows that are kept for unused pictures: 100 pictures of 256 rows of 2560 floats.

A picture that is sent again in the next turn is then not encoded again. With half, that holds for 50
pictures.
"""
_BYTES_AN_ID = 4
_WORD = re.compile("duoPicture[a-p]{32}")
_LETTERS = bytes.maketrans(b"0123456789abcdef", b"abcdefghijklmnop")


class Encoder(Protocol):
    """Makes the parts of a picture or sound. Safe from any thread."""

    identity: bytes  # differs between projectors
    sees: bool  # it reads pictures
    hears: bool  # it reads sounds

    def sound(self, file: bytes) -> Sound:
        """Return the samples of a file that sounds.py has checked. Raises InvalidRequestError."""
        ...

    def parts(self, given: Pixels | Sound, check: Callable[[int], None]) -> list[PicturePart]:
        """Return the parts of a picture or sound.

        Args:
            given: The picture or sound.
            check: Called with the number of positions before any work on them; it may raise.

        Raises:
            InvalidRequestError: The picture or sound cannot be encoded.
        """
        ...


class Pictures:
    """The known pictures and sounds of one model. Safe from any thread.

    Sounds count as pictures: rows of embeddings, for which a word stands in the prompt's text. A picture is
    forgotten once nothing refers to it. This object refers to the latest ones, up to most_bytes.
    """

    def __init__(self, encoder: Encoder, most_bytes: int = MAX_KEPT_BYTES) -> None:
        self._encoder = encoder
        self.sees, self.hears = encoder.sees, encoder.hears
        self._most_bytes = most_bytes
        self._secret = secrets.token_bytes()
        self._by_key: WeakValueDictionary[bytes, Picture] = WeakValueDictionary()
        self._by_word: WeakValueDictionary[str, Picture] = WeakValueDictionary()
        self._by_id: WeakValueDictionary[int, Picture] = WeakValueDictionary()
        self._latest: OrderedDict[Picture, None] = OrderedDict()
        self._n_bytes = 0  # bytes of the rows of these pictures
        self._lock = Lock()

    def of_sound(self, file: bytes, check: Callable[[int], None]) -> Picture:
        """Return the sound in a file that sounds.py has checked, as a Picture; see of()."""
        sound = self._encoder.sound(file)
        check_samples(sound)
        return self.of(sound, check)

    def of(self, given: Pixels | Sound, check: Callable[[int], None]) -> Picture:
        """Return the picture with these pixels or samples. Slow if the picture is new.

        Args:
            given: The pixels or samples.
            check: See Encoder.parts().

        Raises:
            InvalidRequestError: The picture or sound cannot be encoded.
        """
        hashed = hashlib.sha256(self._encoder.identity + f"{given.size} ".encode())
        hashed.update(given.data)  # which may be 75 MB
        key = hashed.digest()
        if (known := self._by_key.get(key)) is not None:
            check(len(known.ids))
        else:
            parts = self._encoder.parts(given, check)
            with self._lock:
                known = self._by_key.get(key) or self._add(key, parts)
        with self._lock:
            self._keep(known)
        return known

    def pieces(self, text: str) -> list[str | Picture]:
        """Split a text at the words of known pictures, and return texts and pictures in order."""
        found, done = list[str | Picture](), 0
        for match in _WORD.finditer(text):
            if (picture := self._by_word.get(match[0])) is not None:
                found += [text[done : match.start()], picture]
                done = match.end()
        return [piece for piece in (*found, text[done:]) if piece]

    def with_id(self, id: int) -> Picture | None:
        """Return the picture that has a position with this id, None if there is none."""
        return self._by_id.get(id)

    def spans(self, tokens: Sequence[int]) -> tuple[PictureSpan, ...]:
        """Return the spans of a prompt's pictures. A picture stays known at least as long as its span exists.

        Raises:
            InvalidRequestError: A picture of the prompt has been forgotten.
        """
        found, at = list[PictureSpan](), 0
        while at < len(tokens):
            if tokens[at] < PICTURE_IDS:
                at += 1
                continue
            if (picture := self._by_id.get(tokens[at])) is None:
                raise InvalidRequestError("a picture of this prompt is not known any more: send it again")
            end = at + len(picture.ids)
            assert tuple(tokens[at:end]) == picture.ids, "a part of a picture"
            whole = tuple((at + first, at + last) for first, last in picture.whole_spans)
            found.append(PictureSpan(at, end, whole, picture))
            at = end
        return tuple(found)

    def _word_of(self, ids: Sequence[int]) -> str:
        """Return the word for a picture with these ids. Only this process, with its secret, can make it."""
        digest = hmac.digest(self._secret, repr(ids).encode(), "sha256").hex().encode()
        return "duoPicture" + digest[:32].translate(_LETTERS).decode()

    def _add(self, key: bytes, parts: list[PicturePart]) -> Picture:
        """Add a new picture, with ids that no known picture has; if a hash collides, try another hash."""
        n = sum(map(len, parts))
        digests = (hashlib.shake_256(key + salt.to_bytes(4)).digest(n * _BYTES_AN_ID) for salt in count())
        ids = next(
            ids
            for ids in map(ids_of, digests)
            if len(set(ids)) == n and not any(id in self._by_id for id in ids)
        )
        picture = Picture(self._word_of(ids), ids, tuple(parts))
        self._by_key[key] = self._by_word[picture.word] = picture
        self._by_id.update(dict.fromkeys(ids, picture))
        return picture

    def _keep(self, picture: Picture) -> None:
        """Make this the latest picture, and drop references to the oldest ones beyond most_bytes."""
        if picture not in self._latest:
            self._n_bytes += picture.n_bytes
        self._latest[picture] = None
        self._latest.move_to_end(picture)
        while self._n_bytes > self._most_bytes and len(self._latest) > 1:
            oldest, _ = self._latest.popitem(last=False)
            self._n_bytes -= oldest.n_bytes
