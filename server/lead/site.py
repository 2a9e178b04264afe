"""Where a lead runs: its socket, its Redis, its threads."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from server.errors import StartupError


@dataclass(frozen=True, slots=True)
class Site:
    """listener: the listening socket. redis_url: where its drafters are. n_threads: of the model on the CPU.
    draft_model: drafts in this process, between steps."""

    listener: socket.socket
    redis_url: str | None
    n_threads: int
    draft_model: Path | None = None


def open_socket(host: str, port: int) -> socket.socket:
    """Raises StartupError when the address is in use or not this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise StartupError(
            f"cannot listen on {host}:{port} ({error.strerror}): choose another address with --host or --port"
        ) from error
    return listener
