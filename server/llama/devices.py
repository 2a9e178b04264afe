"""List ggml's devices, including those of lenders (other machines), and lend this machine's devices."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import llama_cpp.llama_cpp as _llama

from server.errors import StartupError
from server.llama.lenders import greet, watch
from server.llama.options import TensorPlace

# The copy of ggml that libllama uses. llama_cpp._ggml may load a second one, where a package has its file
# under several names; models do not see devices that are registered there.
GGML: Any = _llama._lib  # pyright: ignore[reportPrivateUsage]

_lenders: set[str] = set()  # lenders whose devices llama.cpp knows; it never forgets them
_borrowed: set[int] = set()  # handles of those devices
_host_only = False  # use_no_gpu() was called
CPU, GPU, INTEGRATED = range(3)  # ggml_backend_dev_type; INTEGRATED: a GPU that shares the host's memory


@dataclass(frozen=True, slots=True)
class GgmlDevice:
    """A device of ggml: a GPU, the CPU, or a lender's."""

    name: str
    description: str
    type: int
    free: int  # bytes
    handle: int
    borrowed: bool = False  # True if it is a lender's


def devices() -> list[GgmlDevice]:
    """Return all devices of ggml, in its order. Call start_library() before."""
    GGML.ggml_backend_dev_count.restype = ctypes.c_size_t
    GGML.ggml_backend_dev_get.restype = ctypes.c_void_p
    count = int(GGML.ggml_backend_dev_count())
    return [_device_of(int(GGML.ggml_backend_dev_get(ctypes.c_size_t(i)))) for i in range(count)]


def _device_of(handle: int) -> GgmlDevice:
    for name in ("name", "description"):
        getattr(GGML, f"ggml_backend_dev_{name}").restype = ctypes.c_char_p
    pointer, free, total = ctypes.c_void_p(handle), ctypes.c_size_t(), ctypes.c_size_t()
    GGML.ggml_backend_dev_memory(pointer, ctypes.byref(free), ctypes.byref(total))
    return GgmlDevice(
        GGML.ggml_backend_dev_name(pointer).decode(errors="replace"),
        GGML.ggml_backend_dev_description(pointer).decode(errors="replace"),
        int(GGML.ggml_backend_dev_type(pointer)),
        free.value,
        handle,
        handle in _borrowed,
    )


class _TensorOverride(ctypes.Structure):
    """llama_model_tensor_buft_override."""

    _fields_ = [("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p)]


def tensor_overrides(places: Sequence[TensorPlace]) -> Any:
    """Return these rules as a C array. Raises StartupError if a rule names a buffer that no device has."""
    GGML.ggml_backend_dev_buffer_type.restype = ctypes.c_void_p
    GGML.ggml_backend_buft_name.restype = ctypes.c_char_p
    types = dict[str, int]()
    for device in devices():
        if handle := GGML.ggml_backend_dev_buffer_type(ctypes.c_void_p(device.handle)):
            types[GGML.ggml_backend_buft_name(ctypes.c_void_p(handle)).decode(errors="replace")] = int(handle)
    array = (_TensorOverride * (len(places) + 1))()
    for entry, place in zip(array, places, strict=False):
        if place.buffer not in types:
            raise StartupError(f"--override-tensor: no buffer {place.buffer} here, only {', '.join(types)}")
        entry.pattern, entry.buffer_type = place.pattern.encode(), types[place.buffer]
    return array


def has_rpc() -> bool:
    """Return True if this build of llama.cpp can lend and borrow devices."""
    return bool(_llama.llama_supports_rpc())


def needs_rpc(flag: str = "") -> None:
    """Raise StartupError, naming the flag, if this build has no RPC backend."""
    if not has_rpc():
        raise StartupError(
            f"{flag}this build of llama.cpp has no RPC backend: build it with CMAKE_ARGS=-DGGML_RPC=on pip "
            f"install --force-reinstall --no-cache-dir llama-cpp-python=={version('llama-cpp-python')}"
        )


def _of_rpc(name: bytes, result: Any, *arguments: Any) -> Any:
    """Return a function of ggml's RPC backend, given its C types. This build must have the backend."""
    GGML.ggml_backend_reg_by_name.restype = ctypes.c_void_p
    GGML.ggml_backend_reg_get_proc_address.restype = ctypes.c_void_p
    registry = ctypes.c_void_p(GGML.ggml_backend_reg_by_name(b"RPC"))
    address = GGML.ggml_backend_reg_get_proc_address(registry, name)
    return ctypes.CFUNCTYPE(result, *arguments)(address)


def lend(address: str, lent: Sequence[GgmlDevice], n_threads: int) -> None:
    """Serve these devices to one lead after another; returns only on failure.

    llama.cpp prints on standard output who connects and leaves.

    Args:
        address: IPv4 address in digits, with a port.
        lent: The devices.
        n_threads: CPU threads.
    """
    handles = ctypes.POINTER(ctypes.c_void_p)
    size, text = ctypes.c_size_t, ctypes.c_char_p
    serve = _of_rpc(b"ggml_backend_rpc_start_server", None, text, text, size, size, handles)
    array = (ctypes.c_void_p * len(lent))(*(device.handle for device in lent))
    serve(address.encode(), None, n_threads, len(lent), array)


def borrow(lenders: Sequence[str]) -> None:
    """Make the devices of these lenders (HOST:PORT) known to llama.cpp, as its own --rpc does.

    If a lender is lost later, lenders.Watch reports it. Raises StartupError.
    """
    needs_rpc("--rpc: ")
    add = _of_rpc(b"ggml_backend_rpc_add_server", ctypes.c_void_p, ctypes.c_char_p)
    GGML.ggml_set_abort_callback(_on_abort)
    for lender in lenders:
        if lender in _lenders:
            continue
        greet(lender)  # if this failed in llama.cpp, it would end the process
        before = {device.handle for device in devices()}
        added = add(lender.encode())
        if not added:
            raise StartupError(f"--rpc: {lender} lends no device")
        GGML.ggml_backend_register(ctypes.c_void_p(added))
        _borrowed.update({device.handle for device in devices()} - before)
        _lenders.add(lender)
        watch.add(lender)


def use_no_gpu() -> None:
    """Prevent models that this process loads later from using GPUs.

    llama.cpp uses a GPU for prompts even if none of the layers are on it: a drafter on the CPU would compete
    with the lead for that GPU.
    """
    global _host_only
    _host_only = True


def own_gpus() -> Any:
    """Return the GPUs for a model loaded without --rpc: a C array that ends with None.

    It contains this machine's GPUs, but no borrowed devices. It is empty after use_no_gpu(). Return None in
    place of an array if the model may use all devices.
    """
    if _host_only:
        return (ctypes.c_void_p * 1)(None)
    if not _borrowed:
        return None
    own = [device for device in devices() if device.type in (GPU, INTEGRATED) and not device.borrowed]
    first = min((device.type for device in own), default=GPU)
    handles = [device.handle for device in own if device.type == first]
    return (ctypes.c_void_p * (len(handles) + 1))(*handles)


@ctypes.CFUNCTYPE(None, ctypes.c_char_p)
def _on_abort(message: bytes) -> None:
    """Report the loss of a lender if ggml aborts because of that, else print the message.

    ggml calls this before it aborts, and ends the process when this returns.
    """
    if not watch.aborted(message.decode(errors="replace")):
        os.write(2, message + b"\n")
