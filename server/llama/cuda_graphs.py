"""Whether CUDA replays decodes from recorded graphs, and of which widths: not where that ends the process.

ggml keeps one recorded graph for each first operation that a GPU computes in a decode. Where the first norm's
weights are in the host's memory, the CPU applies them to a single row, and the GPU to more (KEPT_APART), so
that decodes of one row begin with another operation on the GPU: they have a graph of their own, which wider
ones and prompts leave as it is. To come back to it costs an 8B model in Q8_0 on an H100 1.2 ms instead of
5.0; to go from there to eight rows 1.3 instead of 5.5. Prompts with equal numbers of rows follow each other
on the other graph, since single rows between them do not count: LlamaContext keeps them from being recorded,
as attention and 16-bit products may be left to cuBLAS. It has to: of a 7B model in F16 with its prediction
block, prompts of six lengths, steps and guesses in random order ended with an exception of the GPU in two of
two processes without it, and in none of two with it, after 1,300 rounds each (H100, 2026-11-26).

ggml multiplies up to OWN_ROWS rows of 16-bit matrices by kernels of its own (its mmf.cu), more by cuBLAS,
which has other kernels for other numbers of rows. A decode is recorded once it has the shape of the one
before, and the graph that was there is updated. With a model of 7B in F16 on an H100 a decode of 24 rows
after 17 never ended, though each width alone did; with 64 streams on an H200 the GPU reports an illegal
instruction within seconds. Neither was seen without graphs, the second not with cuBLAS computing in 32
bits, which takes twice as long (docs/serving.md). The likely cause: an update keeps launch attributes that
cannot be read back, such as the preferred size of a cluster, and reports success, so that a kernel of
cuBLAS runs with those of another one (sgl-project/sglang, pull request 37657, on GB300). ggml multiplies
quantised matrices itself.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from server.llama.devices import GPU, devices
from server.llama.options import HOST, TensorPlace, Weights
from server.llama.tensors import has_half_matrices

logger = logging.getLogger("duo.llama")

OFF = "GGML_CUDA_DISABLE_GRAPHS"  # of ggml, which asks for it before its first graph
# Of ggml, which asks for it once, when it looks for devices: rows from which a GPU computes what has weights
# in the host's memory. It is 32 by itself.
FEWEST_ROWS = "GGML_OP_OFFLOAD_MIN_BATCH"
KEPT_APART = "2"  # so that only decodes of one row have the other graph. 3: those of two rows have it as well
# A model's first norm, and that of what its prediction block reads.
FIRST_NORMS = r"^blk\.0\.attn_norm\.weight$", r"\.nextn\.enorm\.weight$"
# Rows for which ggml has kernels of its own. Half: steps of 9 to 16 rows are padded to WIDE for nothing.
# Twice: graphs of cuBLAS are updated.
OWN_ROWS = 16
# The only width beyond OWN_ROWS that is recorded: 32 guesses, as many as drafters make ahead. On H100 with 7B
# in F16 it takes 8.4 ms, 17 rows 8.0, 65 rows 9.7. Half: half of a long right draft waits for the next step.
WIDE = 33


def keep_apart(*models: Weights) -> None:
    """Have ggml keep a graph for decodes of a single row in this process. models: all that it loads. Not if a
    part of any is in the host's memory: GPUs would compute with that from two rows on, and read it for each
    decode. Must come before ggml looks for devices, and children of the process must not inherit it."""
    if all(model.n_gpu_layers < 0 and not model.places and not model.rpc for model in models):
        os.environ.setdefault(FEWEST_ROWS, KEPT_APART)


def places_apart(weights: Weights) -> tuple[TensorPlace, ...]:
    """Where a model's tensors go so that decodes of a single row have a graph of their own; none where these
    share the graph of others. None on several GPUs: llama.cpp has them take turns once a tensor is
    elsewhere."""
    if os.environ.get(FEWEST_ROWS) != KEPT_APART or OFF in os.environ:
        return ()
    if weights.n_gpu_layers >= 0 or weights.places or weights.rpc or weights.split_mode in ("row", "tensor"):
        return ()
    gpus = [device for device in devices() if device.type == GPU and not device.borrowed]
    alone = len(gpus) == 1 or weights.split_mode == "none"
    if not (gpus and alone and all(device.name.startswith("CUDA") for device in gpus)):
        return ()
    return tuple(TensorPlace(pattern, HOST) for pattern in FIRST_NORMS)


def forgo_graphs(path: Path, n_slots: int, *, gate: bool = True) -> bool:
    """Have ggml record no CUDA graphs in this process if its model would need graphs of several widths
    beyond OWN_ROWS: with more slots than that, or with as many guesses as there are (gate: false). Must come
    before the first decode. Returns whether that was needed."""
    if (gate and n_slots <= OWN_ROWS) or not _may_fail(path):
        return False
    os.environ[OFF] = "1"
    why = f"more than {OWN_ROWS} slots" if gate else "--no-gate"
    logger.info("  no CUDA graphs: they fail with %s and 16-bit weights", why)
    return True


def forgo_graphs_on_host(weights: Weights) -> None:
    """Have ggml record no CUDA graphs in this process if its model is in the host's memory: a GPU computes
    only what has 32 rows or more, such as prompts. Must come before the first decode. With graphs the GPU
    reported an illegal instruction to drafters on the host's CPU within a minute in each of three runs,
    without them in none of three (the bundled draft model, H200, 2026-11-27)."""
    if weights.n_gpu_layers == 0:
        os.environ.setdefault(OFF, "1")


def own_rows(path: Path) -> int:
    """Rows up to which decodes of every width may be recorded; beyond, one width only. 0: all may be."""
    return OWN_ROWS if _may_fail(path) else 0


def _may_fail(path: Path) -> bool:
    """Whether graphs are recorded, of kernels of cuBLAS."""
    if OFF in os.environ or not any(device.name.startswith("CUDA") for device in devices()):
        return False
    return has_half_matrices(path)
