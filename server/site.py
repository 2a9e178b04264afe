"""Where a lead runs."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from server.errors import StartupError


@dataclass(frozen=True, slots=True)
class Site:
    """Where a lead runs: its listening socket, the Redis of its drafters if any, CPU threads of the model,
    and the draft model to run beside it, if it shall draft synchronously."""

    listener: socket.socket
    redis_url: str | None
    n_threads: int
    draft_model: Path | None = None


def open_socket(host: str, port: int) -> socket.socket:
    """The listening socket, before anything slow. Raises StartupError when the address cannot be had."""
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
