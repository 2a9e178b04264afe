"""Turn pixels and sounds into rows of embeddings with a model's projector file, over libmtmd of llama.cpp."""

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
from server.pictures.sounds import BYTES_A_SAMPLE, Sound

_TEXT_CHUNK, _PICTURE_CHUNK, _SOUND_CHUNK = 0, 1, 2  # MTMD_INPUT_CHUNK_TYPE_TEXT, _IMAGE and _AUDIO
_N_PLACES = 4  # numbers in the position of a row in a model with M-RoPE
_FAR = 1000  # a start, to see how a picture's positions depend on where the picture begins
_SAMPLE = Pixels(1024, 1024, bytes(3 << 20))  # of usual size, to see how many rows a picture takes
_SAMPLE_S = 30  # seconds of a sound, to see how many rows it takes


def _library() -> Any:
    """Return libmtmd's functions. Raises StartupError."""
    try:
        import llama_cpp.mtmd_cpp as functions
    except (ImportError, OSError, FileNotFoundError, RuntimeError) as error:
        why = f"this llama-cpp-python was built without libmtmd, which --mmproj needs ({error})"
        raise StartupError(f"{why}: build it again, by make clean and make up") from error
    return functions


class Projector:
    """Implements Encoder with a projector file, for the model that it was made for. Owns the projector."""

    def __init__(self, path: Path, model: LoadedModel, *, n_threads: int, gpu: bool, most_rows: int) -> None:
        """Load a projector.

        Args:
            path: The projector's GGUF file.
            model: The model.
            n_threads: CPU threads for a picture.
            gpu: Use a GPU.
            most_rows: Maximum rows that the model's context evaluates at once.

        Raises:
            StartupError: The projector cannot be used with this model.
        """
        if not path.is_file():
            raise StartupError(f"no projector at {path}: give the path of a GGUF file with --mmproj")
        self._mtmd = _library()
        self._mtmd.mtmd_helper_log_set(log_line, None)  # libmtmd logs like llama.cpp
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
        """Note what the projector reads. Raise StartupError if its pictures or sounds cannot be served."""
        mtmd = self._mtmd
        self.sees = bool(mtmd.mtmd_support_vision(self._handle))
        self.hears = bool(mtmd.mtmd_support_audio(self._handle))
        self.has_grids = bool(mtmd.mtmd_decode_use_mrope(self._handle))
        if not (self.sees or self.hears):
            raise StartupError(f"{path} reads neither pictures nor sounds")
        usual: dict[str, Pixels | Sound] = {f"a picture of {_SAMPLE.size}": _SAMPLE} if self.sees else {}
        if self.hears:
            self._rate = int(mtmd.mtmd_get_audio_sample_rate(self._handle))
            silence = Sound(self._rate, bytes(BYTES_A_SAMPLE * self._rate * _SAMPLE_S))
            usual[f"a sound of {_SAMPLE_S} s"] = silence
        try:
            counts = {what: self._read(one, self._checked_rows) for what, one in usual.items()}
        except InvalidRequestError as error:
            raise StartupError(f"{path}: {error.message}") from error
        self.costs = ", ".join(f"{n} tokens for {what}" for what, n in counts.items())

    def sound(self, file: bytes) -> Sound:
        """Return the samples of a sound's file, see Encoder. Raises InvalidRequestError."""
        mtmd = self._mtmd
        data = (ctypes.c_uint8 * len(file)).from_buffer_copy(file)
        bitmap = mtmd.mtmd_helper_bitmap_init_from_buf(self._handle, data, len(file), False)
        if not bitmap:
            raise InvalidRequestError("a sound cannot be decoded")
        try:
            n = mtmd.mtmd_bitmap_get_n_bytes(bitmap)
            return Sound(self._rate, ctypes.string_at(mtmd.mtmd_bitmap_get_data(bitmap), n))
        finally:
            mtmd.mtmd_bitmap_free(bitmap)

    def parts(self, given: Pixels | Sound, check: Callable[[int], None]) -> list[PicturePart]:
        """Return the parts of a picture or sound, see Encoder. Raises InvalidRequestError."""
        return self._read(given, lambda chunks: self._encode(chunks, check))

    def _read(self, given: Pixels | Sound, work: Callable[[list[Any]], Any]) -> Any:
        """Split a picture or sound into libmtmd's chunks, return work(chunks), and free the chunks."""
        mtmd, marker = self._mtmd, self._mtmd.mtmd_default_marker()
        text = mtmd.mtmd_input_text(marker, len(marker), False, True)
        chunks, bitmap = mtmd.mtmd_input_chunks_init(), self._bitmap(given)
        try:
            bitmaps = (mtmd.mtmd_bitmap_p_ctypes * 1)(bitmap)
            with self._lock:
                if mtmd.mtmd_tokenize(self._handle, chunks, ctypes.byref(text), bitmaps, 1):
                    raise InvalidRequestError(f"the model's projector cannot read one of {given.size}")
                n = mtmd.mtmd_input_chunks_size(chunks)
                return work([mtmd.mtmd_input_chunks_get(chunks, i) for i in range(n)])
        finally:
            mtmd.mtmd_bitmap_free(bitmap)
            mtmd.mtmd_input_chunks_free(chunks)

    def _bitmap(self, given: Pixels | Sound) -> Any:
        """Return libmtmd's copy of a picture or sound, which the caller must free."""
        kind: Any = ctypes.c_uint8 if isinstance(given, Pixels) else ctypes.c_float
        data = (kind * (len(given.data) // ctypes.sizeof(kind))).from_buffer_copy(given.data)
        if isinstance(given, Pixels):
            return self._mtmd.mtmd_bitmap_init(given.width, given.height, data)
        return self._mtmd.mtmd_bitmap_init_from_audio(len(data), data)

    def _checked_rows(self, chunks: list[Any]) -> int:
        """Return the number of positions of all chunks.

        Raises:
            InvalidRequestError: A chunk does not fit one decode, as it must, or a token is unknown.
        """
        counts = [int(self._mtmd.mtmd_input_chunk_get_n_tokens(chunk)) for chunk in chunks]
        if any(token < 0 for chunk in chunks for token in self._tokens(chunk)):
            raise InvalidRequestError("the model's vocabulary lacks tokens that its pictures or sounds need")
        for chunk, n in zip(chunks, counts, strict=True):
            if self._is_whole(chunk) and n > self._most_rows:
                raise InvalidRequestError(
                    f"one takes {n} rows that must be evaluated at once: the server needs "
                    f"--ubatch-size {n} and --batch-size {n} at least"
                )
        return sum(counts)

    def _is_whole(self, chunk: Any) -> bool:
        mtmd = self._mtmd
        is_text = mtmd.mtmd_input_chunk_get_type(chunk) == _TEXT_CHUNK
        return not is_text and bool(mtmd.mtmd_decode_use_non_causal(self._handle, chunk))

    def _encode(self, chunks: list[Any], check: Callable[[int], None]) -> list[PicturePart]:
        check(self._checked_rows(chunks))
        return [self._part_of(chunk) for chunk in chunks]

    def _tokens(self, chunk: Any) -> tuple[int, ...]:
        """Return the tokens of a chunk, () if it is no text."""
        n = ctypes.c_size_t()
        tokens = self._mtmd.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(n))
        return tuple(tokens[i] for i in range(n.value))

    def _part_of(self, chunk: Any) -> PicturePart:
        mtmd, kind = self._mtmd, self._mtmd.mtmd_input_chunk_get_type(chunk)
        if kind == _TEXT_CHUNK:
            return PicturePart(self._tokens(chunk))
        n_rows = int(mtmd.mtmd_input_chunk_get_n_tokens(chunk))
        grid = self._grid(chunk, n_rows) if self.has_grids else None
        is_plain = mtmd.mtmd_input_chunk_get_n_pos(chunk) == n_rows
        known = kind in (_PICTURE_CHUNK, _SOUND_CHUNK) and (grid is not None or is_plain)
        if not known or mtmd.mtmd_encode_chunk(self._handle, chunk):
            raise InvalidRequestError("the model's projector cannot encode this picture or sound")
        rows = self._rows(n_rows)
        if not np.isfinite(rows).all():
            raise InvalidRequestError("the model's projector makes rows of this that are no numbers")
        return PicturePart(rows=rows, whole=self._is_whole(chunk), grid=grid)

    def _grid(self, chunk: Any, n_rows: int) -> Grid:
        """Return the positions of the rows of a picture or sound.

        Raises:
            InvalidRequestError: They do not grow linearly with the position at which the picture begins.
        """
        if self._mtmd.mtmd_input_chunk_get_type(chunk) == _SOUND_CHUNK:  # one row after the other
            steps = np.tile(np.arange(n_rows, dtype=np.int32), (_N_PLACES, 1))
            return Grid(steps, np.ones((_N_PLACES, 1), np.int32), n_rows)
        tokens = self._mtmd.mtmd_input_chunk_get_tokens_image(chunk)
        here, there, third = (self._positions(tokens, start, n_rows) for start in (0, 1, _FAR))
        moves = there - here
        if (moves != moves[:, :1]).any() or (third != here + _FAR * moves).any():
            raise InvalidRequestError("duo does not serve the positions of this model's pictures")
        n = int(self._mtmd.mtmd_input_chunk_get_n_pos(chunk))
        return Grid(here, moves[:, :1].copy(), n)

    def _positions(self, tokens: Any, start: int, n_rows: int) -> npt.NDArray[np.int32]:
        """Return the positions of a picture's rows if it begins at `start`: an array (4, n_rows).

        Its first index stands for time, row, column and an unused number.
        """
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
