"""A vocabulary that reads the words of pictures: each becomes the ids of the picture's positions."""

from __future__ import annotations

from server.llama.backend import PICTURE_IDS, Vocabulary
from server.pictures.picture import Picture
from server.pictures.registry import Pictures


class PictureVocabulary:
    """Implements Vocabulary over a model's. A text on each side of a picture is tokenised on its own."""

    def __init__(self, vocabulary: Vocabulary, pictures: Pictures) -> None:
        self._vocabulary = vocabulary
        self._pictures = pictures
        self.size, self.longest = vocabulary.size, vocabulary.longest
        self.bos, self.eos, self.fim = vocabulary.bos, vocabulary.eos, vocabulary.fim
        self.eog, self.add_bos, self.added = vocabulary.eog, vocabulary.add_bos, vocabulary.added

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        tokens: list[int] = []
        for piece in self._pictures.pieces(text):
            if isinstance(piece, Picture):
                tokens += piece.ids
            else:
                tokens += self._vocabulary.tokenize(piece, special=special)
        return tokens

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Return a token's bytes.

        If `special` is True, a picture's first position gives the picture's word; its others are empty.
        """
        if token < PICTURE_IDS:
            return self._vocabulary.piece(token, special=special)
        picture = self._pictures.with_id(token) if special else None
        return picture.word.encode() if picture and picture.ids[0] == token else b""
