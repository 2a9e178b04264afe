"""What llama-cpp-python itself says, decoding one token after the other: duo's texts are compared with it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import llama_cpp
import numpy as np

from server.llama.library import ROWS_ON_CPU

N_BATCH = 512
F32 = 0  # GGML_TYPE_F32
# Logits apart at which kernels may round either of two tokens in front: SmolLM2's Q4_1 weights, whose rows
# are rounded by how many are evaluated at once, moved them by up to 0.66 (docs/exactness.md).
NEAR_TIE = 1.0


class PlainDecoder:
    """A model in llama-cpp-python, with the shapes that duo has on a CPU."""

    def __init__(self, path: Path, n_ctx: int = 4096) -> None:
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
        self._llama.reset()
        self._llama.eval(list(prompt))
        found: list[int] = []
        for _ in range(n):
            found.append(int(self._row().argmax()))
            self._llama.eval(found[-1:])
        return tuple(found)

    def gap(self, tokens: Sequence[int], one: int, other: int) -> float:
        """Return how far apart the logits of two tokens are after these."""
        self._llama.reset()
        self._llama.eval(list(tokens))
        row = self._row()
        return float(abs(row[one] - row[other]))

    def close(self) -> None:
        self._llama.close()

    def _row(self) -> np.ndarray[Any, Any]:
        logits = cast(Any, llama_cpp).llama_get_logits(self._llama._ctx.ctx)  # pyright: ignore
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
