"""Open the socket on which a lead listens, and check its certificate."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from socket import AF_INET, AF_INET6, SO_REUSEADDR, SOCK_STREAM, SOL_SOCKET, socket

from server.errors import StartupError
from server.settings import ClientPolicySettings


def open_socket(host: str, port: int) -> socket:
    """Return a socket that listens on this host and port. Raise StartupError if that is impossible."""
    family = AF_INET6 if ":" in host else AF_INET
    listener = socket(family, SOCK_STREAM)
    try:
        listener.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise StartupError(
            f"cannot listen on {host}:{port} ({error.strerror}): choose another address with --host or --port"
        ) from error
    return listener


@dataclass(frozen=True, slots=True)
class Tls:
    """The PEM files of a private key and of its certificate chain."""

    key: Path
    certificate: Path

    def check(self) -> None:
        """Raise StartupError if the files cannot be used."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self.certificate, self.key, password=b"")  # else OpenSSL asks for one
        except (OSError, ValueError) as error:
            raise StartupError(
                f"cannot serve TLS with {self.certificate} and {self.key} ({error}): give a certificate and "
                "its private key, unencrypted, as PEM files with --ssl-cert-file and --ssl-key-file"
            ) from error


def tls_of(settings: ClientPolicySettings) -> Tls | None:
    """Return the checked certificate of these settings, None without one. Raise StartupError if unusable."""
    key, certificate = settings.ssl_key_file, settings.ssl_cert_file
    if (key is None) != (certificate is None):
        raise StartupError("TLS needs both --ssl-key-file and --ssl-cert-file")
    tls = Tls(key, certificate) if key and certificate else None
    if tls:
        tls.check()
    return tls
