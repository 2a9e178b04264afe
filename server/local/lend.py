"""duo lend: lend this machine's memory and devices to a lead on another one, by llama.cpp's RPC server."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from server.errors import StartupError
from server.flags import n_cores
from server.lead.listener import open_socket
from server.llama.devices import CPU, GPU, INTEGRATED, GgmlDevice, devices, lend, needs_rpc
from server.llama.lenders import miss_leads
from server.llama.library import start_library
from server.llama.model_settings import Texts
from server.stop_signals import take_hangups_for_ends

MIB_SHIFT = 20  # a shift: n << MIB_SHIFT is n MiB in bytes
LISTENS_S = 0.01  # seconds between two checks whether llama.cpp listens
EVERYWHERE = "0.0.0.0"


class LendSettings(BaseSettings):
    """Lend this machine's memory and devices to a lead elsewhere, which puts a part of its model here.

    On the lead's machine, run duo up with --rpc HOST:PORT. There is no password: anybody who can connect to
    the port can use this process, so give an address of a network that you trust.
    """

    model_config = SettingsConfigDict(env_prefix="DUO_LEND_", frozen=True, cli_prog_name="duo lend")

    host: str = Field("127.0.0.1", description="the IPv4 address to listen on; 0.0.0.0: all")
    port: int = Field(50052, ge=0, le=65535, description="the port to listen on; 0: a free one")
    threads: int = Field(0, ge=0, description="CPU threads if the CPU is lent; 0: one for each core")
    device: Texts = Field((), description="devices to lend, by ggml's names (default: all GPUs, else CPU)")


def run_lender(settings: LendSettings) -> int:
    """Lend until stopped. Raises StartupError."""
    start_library()
    needs_rpc()
    lent = chosen(settings.device, devices())
    host, port = _address_to_bind(settings.host, settings.port)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop_process)
    take_hangups_for_ends()
    print(*announcement(lent, host, port), sep="\n", flush=True)
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)  # llama.cpp would print each of a lead's many connections
    arguments = f"{host}:{port}", lent, settings.threads or n_cores()
    server = threading.Thread(target=lend, args=arguments, name="duo-lend", daemon=True)
    server.start()
    while server.is_alive() and not miss_leads(host, port):
        time.sleep(LISTENS_S)
    server.join()  # a signal ends this, and would only disturb llama.cpp
    raise StartupError(f"llama.cpp cannot listen on {host}:{port}: choose another --host or --port")


def chosen(names: Sequence[str], known: Sequence[GgmlDevice]) -> list[GgmlDevice]:
    """Return the known devices with these names; without names all GPUs, or the CPU if there is none.

    Raises StartupError.
    """
    if names:
        by_name = {device.name: device for device in known}
        if unknown := [name for name in names if name not in by_name]:
            raise StartupError(f"--device: there is no {unknown[0]} here, but {', '.join(by_name)}")
        return [by_name[name] for name in names]
    for kind in (GPU, INTEGRATED, CPU):
        if found := [device for device in known if device.type == kind]:
            return found
    raise StartupError("llama.cpp finds no device here: install llama-cpp-python anew, as make up does")


def announcement(lent: Sequence[GgmlDevice], host: str, port: int) -> list[str]:
    """Return the lines to print at the start: what is lent, and how a lead can use it."""
    what = ", ".join(f"{one.name} ({one.description}, {one.free >> MIB_SHIFT} MiB)" for one in lent)
    reached = socket.gethostname() if host == EVERYWHERE else host
    lines = [f"duo lends {what} on {host}:{port}; on the other machine: duo up --rpc {reached}:{port}"]
    if not ipaddress.ip_address(host).is_loopback:
        lines.append(
            "  no password is asked for: anybody who can connect to this port can use it and read what passes"
        )
    return lines


def _address_to_bind(host: str, port: int) -> tuple[str, int]:
    """Return the host as a numeric address, as llama.cpp needs it, and a free port in place of 0.

    Raises StartupError.
    """
    try:
        digits = socket.gethostbyname(host)
    except OSError as error:
        raise StartupError(f"--host {host}: {error}: give an address of IPv4 of this machine") from error
    with open_socket(digits, port) as free:
        return digits, int(free.getsockname()[1])


def _stop_process(number: int, frame: FrameType | None) -> None:
    """End the process, since llama.cpp's server cannot be stopped. Leads lose their tensors in it."""
    os._exit(0)
