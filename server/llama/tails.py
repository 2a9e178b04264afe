"""Keep earlier states of recurrent and hybrid models, so that a step's last guesses can be taken back.

The tail is the number of last rows for which earlier states are kept (docs/adr/0016).
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

from server.llama.backend import CELLS_STEP, Batch
from server.llama.context import LlamaContext
from server.llama.context_params import context_params
from server.llama.library import COMPRESSED, C, LoadedModel
from server.llama.options import LlamaOptions

# Maximum rows of a tail, since a block guesses two to four. Half: if a guess before the last two is wrong,
# rows are evaluated again. Twice: every step takes 2 % longer (four add 2 to 3 % on an H100, eight 4 to 5 %).
MAX_TAIL = 4
# Maximum memory of kept states, as a share of that of the weights. Half: four slots of Qwen3.6 35B-A3B keep
# one state each instead of three. Twice: one slot of a 27B model gives states the memory of 100,000 tokens.
SHARE = 0.25
TAIL_MARGIN = 2  # rows by which a micro-batch must be longer than the tail, or llama.cpp ends the process


def with_tail(model: LoadedModel, options: LlamaOptions) -> LlamaOptions:
    """Return the options with n_tail reduced to a useful length that llama.cpp and the memory allow.

    n_tail is the number of last rows of a sequence for which earlier states are kept.
    """
    if not (options.n_tail and gains(model, options.head is not None)):
        return replace(options, n_tail=0)
    asked = replace(options, n_tail=min(options.n_tail, MAX_TAIL))
    granted, n_bytes = _of_a_sequence(model, asked)
    n_states = int(SHARE * model.n_bytes / max(1, n_bytes * options.n_seqs))
    n_ubatch = min(options.n_ubatch or options.n_batch, options.n_batch)
    return replace(options, n_tail=max(0, min(granted, n_states - 1, n_ubatch - TAIL_MARGIN)))


def gains(model: LoadedModel, has_head: bool = False) -> bool:
    """Return True if a tail (earlier states of the last rows) is better for the model than checkpoints.

    Checkpoints cost nothing while guesses are right. After a wrong guess the next step evaluates rows again,
    and a prediction block or head cannot guess in that step. Models with compressed cells cannot have
    checkpoints, since such cells cannot be copied.

    has_head: True if a head in its own file guesses for the model.
    """
    stateful = C.llama_model_is_recurrent(model.handle) or C.llama_model_is_hybrid(model.handle)
    guesses_inside = has_head or model.n_blocks > 0
    return bool(stateful) and (guesses_inside or model.metadata("general.architecture") in COMPRESSED)


def _of_a_sequence(model: LoadedModel, options: LlamaOptions) -> tuple[int, int]:
    """Return the longest tail that llama.cpp grants, in rows, and the bytes of one state.

    Both are measured in a context of one sequence and few cells.
    """
    n_rows = options.n_tail + TAIL_MARGIN
    small = replace(options, n_cells=CELLS_STEP, n_seqs=1, n_streams=0, n_batch=n_rows, n_ubatch=n_rows)
    context = LlamaContext()
    with closing(context):
        if not (handle := model.context(context_params(small))):
            return 0, 0
        context.attach(model, handle, n_streams=0, overlaps=False)
        batch = Batch()
        batch.extend(0, 0, [0], 0)
        context.decode(batch)
        return context.n_tail, context.state_bytes(0)
