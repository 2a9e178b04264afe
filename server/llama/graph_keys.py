"""Give each shape of decode its own recorded CUDA graph, so that a change of shape discards none.

ggml keeps a recorded graph under the address of the first operation that a GPU computes in a decode
(ggml_cuda_graph_get_key in its ggml-cuda.cu). llama.cpp makes the operations of each decode at the addresses
of the previous one, so all decodes share one graph, and each change of shape discards it. This module inserts
a first operation that does nothing, at a different address for each shape. A shape is the number of rows, of
wanted rows, and of cells that the rows attend to, which llama.cpp rounds up to 256.

llama.cpp lets a sampler add operations to the graph of a decode (llama_sampler_i.backend_apply in its
llama.h). The sampler here belongs to a sequence that no row has, so it samples nothing. It is called once for
each graph that llama.cpp builds, on the thread that decodes. It changes no bit of the logits. A side
effect of any sampler: llama.cpp also rebuilds a graph if the sequences of rows, or the choice of wanted rows,
differ from those of the previous decode.
"""

from __future__ import annotations

import ctypes
from typing import Any

from server.llama.devices import GGML
from server.llama.library import C, LoadedModel

NOBODY = -1  # the sequence that the sampler belongs to: none
# Maximum rows of a part of a prompt whose shape has its own graph. Longer parts share one graph, which is not
# recorded (LlamaContext). Half: more parts compute unwanted logits, only to have another shape. Twice: more
# prompts hold 1 MB of host memory in ggml for 10 s, for each number of rows.
MAX_DECODE_ROWS = 128
# Maximum shapes whose keys are kept, 2 KB each. ggml keeps a graph for 10 s. If its key is freed earlier,
# another shape may get the same address. In 10 s, steps of 5 ms have at most 2,000 shapes. Half: just enough
# for these. Twice: 8 MB more.
MAX_GRAPH_KEYS = 4096
PROMPTS = 0  # stands for the number of rows in the key of the graph that longer parts of prompts share
_FIRST = 4  # number of first operations of a graph, one of which looks up the embeddings of its tokens
# Number of a graph's first operations whose sizes tell its shape. If the first layer has attention, one of
# the first 38 shows the number of cells (DeepSeek 4; of the first 18 with Llama). Otherwise the number stays
# unknown, and a graph is recorded again when it changes. Half: it stays unknown for seven of the eight
# architectures in the tests. Twice: inserting takes 68 µs instead of 55; building a graph takes 1.1 ms.
_TELLING = 40
_FLOAT, _POINTER = 0, ctypes.c_void_p  # GGML_TYPE_F32


class _InitParams(ctypes.Structure):
    """ggml_init_params."""

    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", _POINTER), ("no_alloc", ctypes.c_bool)]


def _function(name: str, result: Any, *arguments: Any) -> Any:
    function = GGML[name]  # a new object: others may use GGML.name with other types
    function.restype, function.argtypes = result, arguments
    return function


_init = _function("ggml_init", _POINTER, _InitParams)
_reset = _function("ggml_reset", None, _POINTER)
_free = _function("ggml_free", None, _POINTER)
_overhead = _function("ggml_tensor_overhead", ctypes.c_size_t)
_new_tensor = _function("ggml_new_tensor_1d", _POINTER, _POINTER, ctypes.c_int, ctypes.c_int64)
_n_nodes = _function("ggml_graph_n_nodes", ctypes.c_int, _POINTER)
_nodes = _function("ggml_graph_nodes", ctypes.POINTER(_POINTER), _POINTER)
_add_node = _function("ggml_graph_add_node", None, _POINTER, _POINTER)
_operation = _function("ggml_op_desc", ctypes.c_char_p, _POINTER)
_n_rows = _function("ggml_nrows", ctypes.c_int64, _POINTER)
_n_elements = _function("ggml_nelements", ctypes.c_int64, _POINTER)


def _is_supported(_sampler: Any, _buffer_type: Any, _n_outputs: int) -> bool:
    """Return True: the device can compute what the sampler adds. Used as llama_sampler_i.backend_init."""
    return True


class GraphKeys:
    """Gives each shape of a context's decodes an address (key) by which ggml keeps the shape's own graph.

    Close it after the context.
    """

    def __init__(self, params: Any) -> None:
        """Make the sampler that adds an operation to each graph, and put it into `params`.

        The next context must be made from these context parameters.
        """
        self.keys: dict[tuple[int, ...], int] = {}  # ggml contexts by shape, least recently used first
        self._interface = C.llama_sampler_i(
            backend_init=C.llama_sampler_i_backend_init(_is_supported),
            backend_apply=C.llama_sampler_i_backend_apply(self._apply),
        )
        self._chain = C.llama_sampler_chain_init(C.llama_sampler_chain_default_params())
        C.llama_sampler_chain_add(self._chain, C.llama_sampler_init(ctypes.pointer(self._interface), None))
        self._config = C.llama_sampler_seq_config(NOBODY, ctypes.cast(self._chain, _POINTER))
        params.samplers, params.n_samplers = ctypes.pointer(self._config), 1

    def _apply(self, _sampler: Any, _context: Any, graph: int, _data: Any) -> None:
        """Insert this shape's operation, which does nothing, before the first operation computed on a GPU.

        Earlier operations look up the tokens' embeddings on the CPU. `graph` has all operations of a decode
        except the inserted one.
        """
        n = int(_n_nodes(graph))
        if not n:
            return  # llama.cpp tries out the sampler without a model
        nodes = _nodes(graph)
        reading = [i for i in range(min(n, _FIRST)) if _operation(nodes[i]) == b"GET_ROWS"]
        at = reading[-1] + 1 if reading else 0
        n_rows, n_wanted = int(_n_rows(nodes[max(0, at - 1)])), int(_n_rows(nodes[n - 1]))
        if n_rows > MAX_DECODE_ROWS and n_wanted < n_rows:
            shape = PROMPTS, min(1, n_wanted)
        else:
            shape = n_rows, n_wanted, *[int(_n_elements(nodes[i])) for i in range(min(n, _TELLING))]
        _add_node(graph, self._key(shape))
        key, place = nodes[n], ctypes.addressof(nodes.contents) + at * ctypes.sizeof(_POINTER)
        ctypes.memmove(place + ctypes.sizeof(_POINTER), place, (n - at) * ctypes.sizeof(_POINTER))
        nodes[at] = key

    def _key(self, shape: tuple[int, ...]) -> int:
        """Return a new tensor, at the address kept for this shape, to insert into a graph as an operation.

        It replaces the previous tensor there, to which a graph may have assigned memory.
        """
        context = self.keys.pop(shape, 0) or int(_init(_InitParams(_overhead(), None, True)))
        self.keys[shape] = context  # the latest one is the last
        if len(self.keys) > MAX_GRAPH_KEYS:
            _free(self.keys.pop(next(iter(self.keys))))
        _reset(context)
        return int(_new_tensor(context, _FLOAT, 1))

    def close(self) -> None:
        if self._chain:
            C.llama_sampler_free(self._chain)
            self._chain = None
        for context in self.keys.values():
            _free(context)
        self.keys = {}


def keys_of(model: LoadedModel, params: Any) -> GraphKeys | None:
    """Put new keys into the parameters of a context, and return them; None if its shapes share graphs."""
    return GraphKeys(params) if model.has_own_graphs else None
