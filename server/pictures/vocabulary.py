"""A vocabulary that also converts the words for pictures to the ids of the pictures' positions."""

from __future__ import annotations

from server.llama.backend import PICTURE_IDS, Vocabulary
from server.pictures.picture import Picture
from server.pictures.registry import Pictures


class PictureVocabulary:
    """Wraps a model's Vocabulary and implements it. Texts around a picture are tokenised separately."""

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

        With `special`, the first position of a picture returns the word that stands for the picture in a
        prompt. All other positions of pictures return b"".
        """
        if token < PICTURE_IDS:
            return self._vocabulary.piece(token, special=special)
        picture = self._pictures.with_id(token) if special else None
        return picture.word.encode() if picture and picture.ids[0] == token else b""
