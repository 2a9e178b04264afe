"""What llama-cpp-python itself says, decoding one token after the other: duo's texts are compared with it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, cast

import llama_cpp
import numpy as np

from server.llama.library import ROWS_ON_CPU
from server.llama.llamacpp import LlamaBackend
from server.llama.options import LlamaOptions

N_CELLS = 4096  # of a KV cache
N_BATCH = 512
F32 = 0  # GGML_TYPE_F32
# Logits apart at which kernels may round either of two tokens in front: SmolLM2's Q4_1 weights, whose rows
# are rounded by how many are evaluated at once, moved them by up to 0.66 (docs/exactness.md).
NEAR_TIE = 1.0


def opened(path: Path, n_cells: int = N_CELLS) -> LlamaBackend:
    """Load a model in duo in the shapes of PlainDecoder, so that both have the same bits."""
    options = LlamaOptions(
        path,
        n_cells,
        n_seqs=8,
        n_batch=N_BATCH,
        n_ubatch=ROWS_ON_CPU,
        cache_type_k="f32",
        cache_type_v="f32",
        flash_attention="off",
    )
    return LlamaBackend(options)


class PlainDecoder:
    """A model in llama-cpp-python on one thread, with an F32 cache and without flash attention.

    Prompts are evaluated in parts of ROWS_ON_CPU rows, as duo does on a CPU: llama.cpp's own default is 512.
    """

    def __init__(self, path: Path, n_ctx: int = N_CELLS) -> None:
        self._llama = llama_cpp.Llama(
            str(path),
            n_ctx=n_ctx,
            n_batch=N_BATCH,
            n_ubatch=ROWS_ON_CPU,
            n_threads=1,
            n_threads_batch=1,
            type_k=F32,
            type_v=F32,
            swa_full=True,
            verbose=False,
        )

    def text(self, prompt: Sequence[int], n: int) -> tuple[int, ...]:
        """Return the n likeliest tokens after these."""
        return self.texts(prompt, n, widths=[1])[0]

    def texts(
        self, prompt: Sequence[int], n: int, *, widths: Sequence[int], ends: Collection[int] = ()
    ) -> list[tuple[int, ...]]:
        """Return the likeliest tokens after these, once for each width.

        Args:
            prompt: The tokens before them.
            n: Most tokens of a text.
            widths: Rows of each decode after the prompt's; those beside the token's are forgotten.
            ends: Tokens that end a text, as its last one.
        """
        self._llama.reset()
        self._llama.eval(list(prompt))
        first, found = self._row(), list[tuple[int, ...]]()
        for width in widths:
            self._forget(len(prompt))
            row, text = first, list[int]()
            while len(text) < n and not (text and text[-1] in ends):
                text.append(int(row.argmax()))
                row = self._after(text[-1], len(prompt) + len(text) - 1, width)
            found.append(tuple(text))
        return found

    def _after(self, token: int, position: int, width: int) -> np.ndarray[Any, Any]:
        """Return the logits after a token at this position, decoded in as many rows."""
        batch = self._llama._batch  # pyright: ignore
        batch.set_batch([token] * width, position, logits_all=True)
        self._llama._ctx.decode(batch)  # pyright: ignore
        row = self._row(-width)
        self._forget(position + 1)
        return row

    def _forget(self, length: int) -> None:
        """Forget what comes after this many tokens."""
        low = cast(Any, llama_cpp)
        low.llama_memory_seq_rm(low.llama_get_memory(self._llama._ctx.ctx), 0, length, -1)  # pyright: ignore

    def gap(self, tokens: Sequence[int], one: int, other: int) -> float:
        """Return how far apart the logits of two tokens are after these."""
        self._llama.reset()
        self._llama.eval(list(tokens))
        row = self._row()
        return float(abs(row[one] - row[other]))

    def close(self) -> None:
        self._llama.close()

    def _row(self, i: int = -1) -> np.ndarray[Any, Any]:
        logits = cast(Any, llama_cpp).llama_get_logits_ith(self._llama._ctx.ctx, i)  # pyright: ignore
        return np.ctypeslib.as_array(logits, shape=(self._llama.n_vocab(),)).copy()


def assert_alike(
    plain: PlainDecoder, prompt: Sequence[int], found: Sequence[int], expected: Sequence[int]
) -> None:
    """Fail if the texts part where two tokens are no near-tie."""
    at = next((i for i, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]), None)
    if at is None:
        assert len(found) == len(expected)
        return
    gap = plain.gap([*prompt, *expected[:at]], found[at], expected[at])
    assert gap < NEAR_TIE, f"they part at token {at}, where the logits are {gap:.2f} apart"
