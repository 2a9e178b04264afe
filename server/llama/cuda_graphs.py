"""Whether CUDA replays decodes from recorded graphs: not where that ends the process."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from server.llama.devices import devices
from server.llama.tensors import has_half_matrices

logger = logging.getLogger("duo.llama")

OFF = "GGML_CUDA_DISABLE_GRAPHS"  # of ggml, which asks for it before its first graph
# Slots up to which graphs are recorded: ggml multiplies up to 16 rows by kernels of its own (its mmf.cu),
# more by cuBLAS. Half: 9 to 16 slots lose graphs for nothing. Twice: 32 streams ended the process.
MOST_SLOTS = 16


def forgo_graphs(path: Path, n_slots: int) -> bool:
    """Have ggml record no CUDA graphs in this process if its model would end it. Must come before the first
    decode. Returns whether that was needed.

    Where a step has more than 16 rows of a model in 16-bit floats, a graph holds kernels of cuBLAS. With 64
    streams the GPU then reports an illegal instruction within seconds; neither without graphs nor with cuBLAS
    computing in 32 bits, which takes twice as long (docs/serving.md). 16 streams with guesses have as many
    rows and ran: what else it takes is not known. ggml multiplies quantised matrices itself.
    """
    if n_slots <= MOST_SLOTS or OFF in os.environ:
        return False
    if not any(device.name.startswith("CUDA") for device in devices()) or not has_half_matrices(path):
        return False
    os.environ[OFF] = "1"
    logger.info("  no CUDA graphs: they fail with more than %d slots and 16-bit weights", MOST_SLOTS)
    return True
