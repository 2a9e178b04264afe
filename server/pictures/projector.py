"""Turn pixels into rows of embeddings with a model's projector file, over libmtmd of llama.cpp."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from server.errors import InvalidRequestError, StartupError
from server.llama.backend import Grid, Hidden
from server.llama.library import C, LoadedModel, first_error, forget_errors, log_line
from server.pictures.picture import PicturePart
from server.pictures.pixels import Pixels

_TEXT_CHUNK, _PICTURE_CHUNK = 0, 1  # MTMD_INPUT_CHUNK_TYPE_TEXT and _IMAGE
_FAR = 1000  # a position, to see how those of a picture depend on where it begins
_SAMPLE = Pixels(1024, 1024, bytes(3 << 20))  # of usual size, to see how many rows a picture takes


def _library() -> Any:
    """Return libmtmd's functions. Raises StartupError."""
    try:
        import llama_cpp.mtmd_cpp as functions
    except (ImportError, OSError, FileNotFoundError, RuntimeError) as error:
        why = f"this llama-cpp-python was built without libmtmd, which --mmproj needs ({error})"
        raise StartupError(f"{why}: build it again, by make clean and make up") from error
    return functions


class Projector:
    """Implements Encoder with a projector file and the model that it was made for. Owns it until close()."""

    def __init__(self, path: Path, model: LoadedModel, *, n_threads: int, gpu: bool, most_rows: int) -> None:
        """Load a projector.

        Args:
            path: Its GGUF file.
            model: The model.
            n_threads: CPU threads for a picture.
            gpu: Use a GPU.
            most_rows: Maximum rows that the model's context evaluates at once.

        Raises:
            StartupError: It cannot be used with this model.
        """
        if not path.is_file():
            raise StartupError(f"no projector at {path}: give the path of a GGUF file with --mmproj")
        self._mtmd = _library()
        self._mtmd.mtmd_log_set(log_line, None)
        self._n_embd = int(C.llama_model_n_embd_inp(model.handle))
        self._most_rows = most_rows
        self._lock = Lock()  # a context encodes one picture at a time
        params = self._mtmd.mtmd_context_params_default()
        params.use_gpu, params.n_threads, params.print_timings = gpu, n_threads, False
        forget_errors()
        self._handle = self._mtmd.mtmd_init_from_file(os.fsencode(path), model.handle, params)
        if not self._handle:
            raise StartupError(f"llama.cpp cannot use {path}{first_error()}: is it for this model?")
        try:
            self._check(path)
        except BaseException:
            self.close()
            raise
        at = path.stat()
        self.identity = repr((path.name, at.st_size, at.st_mtime_ns)).encode()

    def _check(self, path: Path) -> None:
        """Raise StartupError if pictures of this projector cannot be served."""
        if not self._mtmd.mtmd_support_vision(self._handle):
            raise StartupError(f"{path} reads no pictures: duo serves projectors of pictures only")
        self.has_grids = bool(self._mtmd.mtmd_decode_use_mrope(self._handle))
        try:
            self.n_usual: int = self._read(_SAMPLE, self._checked_rows)  # positions of a usual picture
        except InvalidRequestError as error:
            raise StartupError(f"{path}: {error.message}") from error

    def parts(self, pixels: Pixels, check: Callable[[int], None]) -> list[PicturePart]:
        """Return the parts of a picture, see Encoder. Raises InvalidRequestError."""
        return self._read(pixels, lambda chunks: self._encode(chunks, check))

    def _read(self, pixels: Pixels, work: Callable[[list[Any]], Any]) -> Any:
        """Return work(chunks of the picture)."""
        mtmd, marker = self._mtmd, self._mtmd.mtmd_default_marker()
        text = mtmd.mtmd_input_text(marker, len(marker), False, True)
        data = (ctypes.c_uint8 * len(pixels.data)).from_buffer_copy(pixels.data)
        chunks = mtmd.mtmd_input_chunks_init()
        bitmap = mtmd.mtmd_bitmap_init(pixels.width, pixels.height, data)
        try:
            bitmaps = (mtmd.mtmd_bitmap_p_ctypes * 1)(bitmap)
            with self._lock:
                if mtmd.mtmd_tokenize(self._handle, chunks, ctypes.byref(text), bitmaps, 1):
                    size = f"{pixels.width} x {pixels.height} pixels"
                    raise InvalidRequestError(f"the model's projector cannot read a picture of {size}")
                n = mtmd.mtmd_input_chunks_size(chunks)
                return work([mtmd.mtmd_input_chunks_get(chunks, i) for i in range(n)])
        finally:
            mtmd.mtmd_bitmap_free(bitmap)
            mtmd.mtmd_input_chunks_free(chunks)

    def _checked_rows(self, chunks: list[Any]) -> int:
        """Return the number of positions. Raises InvalidRequestError if one decode cannot have a chunk."""
        counts = [int(self._mtmd.mtmd_input_chunk_get_n_tokens(chunk)) for chunk in chunks]
        if any(token < 0 for chunk in chunks for token in self._tokens(chunk)):
            raise InvalidRequestError("the model's vocabulary lacks tokens that its pictures need")
        for chunk, n in zip(chunks, counts, strict=True):
            if self._is_whole(chunk) and n > self._most_rows:
                raise InvalidRequestError(
                    f"a picture takes {n} rows that must be evaluated at once: the server needs "
                    f"--ubatch-size {n} and --batch-size {n} at least"
                )
        return sum(counts)

    def _is_whole(self, chunk: Any) -> bool:
        mtmd = self._mtmd
        is_picture = mtmd.mtmd_input_chunk_get_type(chunk) == _PICTURE_CHUNK
        return is_picture and bool(mtmd.mtmd_decode_use_non_causal(self._handle, chunk))

    def _encode(self, chunks: list[Any], check: Callable[[int], None]) -> list[PicturePart]:
        check(self._checked_rows(chunks))
        return [self._part_of(chunk) for chunk in chunks]

    def _tokens(self, chunk: Any) -> tuple[int, ...]:
        """Return the tokens of a chunk, none if it is no text."""
        n = ctypes.c_size_t()
        tokens = self._mtmd.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(n))
        return tuple(tokens[i] for i in range(n.value))

    def _part_of(self, chunk: Any) -> PicturePart:
        mtmd, kind = self._mtmd, self._mtmd.mtmd_input_chunk_get_type(chunk)
        if kind == _TEXT_CHUNK:
            return PicturePart(self._tokens(chunk))
        n_rows = int(mtmd.mtmd_input_chunk_get_n_tokens(chunk))
        grid = self._grid(chunk, n_rows) if self.has_grids else None
        is_plain = kind == _PICTURE_CHUNK and mtmd.mtmd_input_chunk_get_n_pos(chunk) == n_rows
        if (grid is None and not is_plain) or mtmd.mtmd_encode_chunk(self._handle, chunk):
            raise InvalidRequestError("the model's projector cannot encode this picture")
        return PicturePart(rows=self._rows(n_rows), whole=self._is_whole(chunk), grid=grid)

    def _grid(self, chunk: Any, n_rows: int) -> Grid:
        """Return the positions of a picture's rows.

        Raises:
            InvalidRequestError: Positions do not grow linearly with the position at which the picture begins.
        """
        tokens = self._mtmd.mtmd_input_chunk_get_tokens_image(chunk)
        here, there, third = (self._positions(tokens, start, n_rows) for start in (0, 1, _FAR))
        moves = there - here
        if (moves != moves[:, :1]).any() or (third != here + _FAR * moves).any():
            raise InvalidRequestError("duo does not serve the positions of this model's pictures")
        n = int(self._mtmd.mtmd_input_chunk_get_n_pos(chunk))
        return Grid(here, moves[:, :1].copy(), n)

    def _positions(self, tokens: Any, start: int, n_rows: int) -> npt.NDArray[np.int32]:
        """Return time, row, column and another position of each row of a picture that begins at `start`."""
        of = self._mtmd.mtmd_image_tokens_get_decoder_pos
        found = [of(tokens, start, i) for i in range(n_rows)]
        return np.array([[one.t, one.y, one.x, one.z] for one in found], np.uint32).astype(np.int32).T

    def _rows(self, n: int) -> Hidden:
        """Return a copy of the n rows encoded last."""
        start = ctypes.cast(self._mtmd.mtmd_get_output_embd(self._handle), ctypes.c_void_p).value
        values: Any = (ctypes.c_float * (n * self._n_embd)).from_address(start or 0)
        return np.frombuffer(values, dtype=np.float32).reshape(n, self._n_embd).copy()

    def close(self) -> None:
        if self._handle:
            self._mtmd.mtmd_free(self._handle)
            self._handle = None
