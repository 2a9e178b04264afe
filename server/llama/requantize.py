"""Convert a model's weights to the type that this CPU multiplies fastest by several rows.

Verifying guesses multiplies each weight by several rows at once. llama.cpp has kernels for that only for some
types, and the fastest type depends on the CPU.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from server.cache_folder import temporary_folder
from server.errors import StartupError
from server.llama.library import C, first_error, forget_errors, start_library
from server.llama.tensors import is_whole

logger = logging.getLogger("duo.model")

BEST_TYPES: tuple[tuple[str, str], ...] = (("AVX2 = 1", "Q4_0"), ("DOTPROD = 1", "Q4_0"))
"""Type by CPU feature, as llama.cpp reports it; the first feature that the CPU has determines the type.

SmolLM2-135M-Instruct on two Zen 4 cores, ms of a decode with 1, 4 and 8 rows: Q4_1 as shipped 8.7, 21.9,
35.9; Q4_0 6.1, 14.3, 21.8; IQ4_NL 5.7, 13.9, 21.9; Q8_0 7.8, 21.0, 29.0; F16 11.7, 25.2, 32.8. ARM, where
llama.cpp has the same kernels, has not been measured.
"""


def best_type(system_info: str) -> str | None:
    """Return the weight type that decodes several rows fastest on this CPU; None to keep the file's type.

    Args:
        system_info: llama.cpp's description of the CPU and of its own build.
    """
    if "REPACK = 1" not in system_info:  # only builds with it have kernels for several rows
        return None
    return next((kind for feature, kind in BEST_TYPES if feature in system_info), None)


def for_this_machine(path: Path, n_threads: int) -> Path:
    """Return a file beside `path` with the same weights in best_type(); make it if it is missing.

    Args:
        path: The GGUF file.
        n_threads: CPU threads of the quantiser.

    Returns:
        The path of that file; `path` itself if it has the best type already, or no file can be made.
    """
    start_library()
    kind = best_type(C.llama_print_system_info().decode())
    if kind is None or kind in path.stem:
        return path
    stem = path.stem.rpartition(".")[0] or path.stem
    made = path.with_name(f"{stem}.{kind}.gguf")
    if is_whole(made):
        return made
    try:
        with temporary_folder(path.parent) as aside:
            if not is_whole(made):  # another process made it meanwhile
                logger.info("  model    its weights become %s once, which this CPU multiplies best", kind)
                _quantize_file(path, aside / made.name, kind, n_threads)
                (aside / made.name).replace(made)
        return made
    except (OSError, StartupError) as error:
        logger.info("  model    its weights stay as they are: %s", error)
        return path


def _quantize_file(path: Path, to: Path, kind: str, n_threads: int) -> None:
    """Write `path` to `to` with its weights converted to `kind`. Raises StartupError, OSError."""
    params = C.llama_model_quantize_default_params()
    params.nthread = n_threads
    params.ftype = getattr(C, f"LLAMA_FTYPE_MOSTLY_{kind}")
    params.allow_requantize = True
    forget_errors()
    if C.llama_model_quantize(os.fsencode(path), os.fsencode(to), params):
        raise StartupError(f"llama.cpp cannot quantise {path.name}{first_error()}")
    with to.open("rb") as written:
        os.fsync(written.fileno())
