"""Decide whether CUDA may replay decodes from recorded graphs, and disable graphs where they crash or hang.

ggml records a decode when it has the shape of the previous one that used the same graph, and updates that
graph. For 16-bit matrices, ggml has its own kernels for up to 16 rows (mmf.cu). For more rows it calls
cuBLAS, which chooses a kernel by the number of rows. Two failures were seen, both only with graphs. With a 7B
model in F16 on an H100, a decode of 24 rows after one of 17 never ended, though either width alone worked.
With 64 streams on an H200, the GPU reports an illegal instruction within seconds, unless cuBLAS computes in
32 bits, which takes twice as long. The likely cause: an update keeps launch attributes that cannot be read
back, such as the preferred cluster size, and reports success. Then a cuBLAS kernel runs with the attributes
of another one (sgl-project/sglang, pull request 37657, on GB300). ggml multiplies quantised matrices itself.

So each shape of decode has its own graph (graph_keys.py), which is never updated to other kernels. Parts of
prompts share graphs, and are not recorded: LlamaContext varies their shape. That requires a model that is
whole on one GPU. Elsewhere models with 16-bit weights have no graphs. With many slots no model has graphs,
because few shapes recur often enough when clients come and go.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from server.llama.devices import GPU, devices
from server.llama.options import Weights
from server.llama.tensors import has_half_matrices

logger = logging.getLogger("duo.llama")

OFF = "GGML_CUDA_DISABLE_GRAPHS"  # variable that ggml reads before its first graph
BY_DUO = "duo"  # the variable's value if this process has set it
# Maximum slots of a lead with graphs. Without graphs, leads of 64 slots made these multiples of the tokens
# per second for 64, 16 and 4 clients (H100, 2026-11-28): 1.08, 1.07 and 0.98 with 8B in F16, and 1.06, 1.07
# and 0.96 in Q8_0, if they never drafted; 1.14, 1.02 and 1.06 in Q8_0, if they drafted. Half: leads of 9 to
# 16 slots that never draft lose 2 to 4 percent when few slots are in use; twice: leads of 17 to 32 slots lose
# 7 percent when most slots are in use (inferred).
MOST_SLOTS = 16


def each_has_its_own(weights: Weights, *, whole: bool) -> bool:
    """Return True if each shape of decode can have its own graph. `whole`: all layers are on GPUs."""
    if not whole or weights.places or weights.rpc or weights.split_mode in ("row", "tensor"):
        return False
    gpus = [device for device in devices() if device.type == GPU and not device.borrowed]
    alone = len(gpus) == 1 or weights.split_mode == "none"
    return bool(gpus) and alone and all(device.name.startswith("CUDA") for device in gpus) and _are_recorded()


def forgo_graphs(path: Path) -> bool:
    """Disable CUDA graphs if ggml would corrupt those of this model; return True if this call did so.

    ggml does so when it updates a graph from one cuBLAS kernel to another. Call this before the first decode.
    """
    if not _are_recorded() or not has_half_matrices(path):
        return False
    _disable_graphs("they fail with 16-bit weights that are not on one GPU")
    return True


def forgo_graphs_of_many(n_slots: int) -> bool:
    """Disable CUDA graphs if a lead with n_slots slots is faster without; return True if this call did so."""
    if not _are_recorded() or n_slots <= MOST_SLOTS:
        return False
    _disable_graphs(f"with more than {MOST_SLOTS} slots they take more time than they save")
    return True


def _disable_graphs(why: str) -> None:
    os.environ[OFF] = BY_DUO
    logger.info("  no CUDA graphs: %s", why)


def forgo_graphs_on_host(weights: Weights) -> None:
    """Disable CUDA graphs in this process if its model is in host memory.

    A GPU then computes only decodes of 32 rows or more, such as prompts. Call this before the first decode.
    With graphs, the GPU reported an illegal instruction to drafters on the host's CPU within a minute in each
    of three runs; without graphs, in none of three runs (the bundled draft model, H200, 2026-11-27).
    """
    if weights.n_gpu_layers == 0:
        os.environ.setdefault(OFF, BY_DUO)


def _are_recorded() -> bool:
    return OFF not in os.environ and any(device.name.startswith("CUDA") for device in devices())
