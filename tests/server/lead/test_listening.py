"""The socket before there is a model, and TLS on it."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import trustme

from server.api.app import create_waiting_app
from server.api.middleware import Edge
from server.api.services import Health
from server.errors import StartupError
from server.flags import read
from server.lead.listening import ClientPolicy, Tls, answering, client_policy_of
from server.settings import LeadSettings
from tests.contract.contract import validate
from tests.contract.witness import witnessed
from tests.fake_backend import FakeBackend
from tests.http_lead import serving

LOADING = Health("loading", 4, 0, 0, 0.0)


def self_signed(folder: Path) -> tuple[Tls, ssl.SSLContext]:
    """Return a certificate for this machine, and the context of a client that trusts it."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    tls = Tls(folder / "key.pem", folder / "cert.pem")
    issued.private_key_pem.write_to_path(tls.key)
    issued.cert_chain_pems[0].write_to_path(tls.certificate)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    return tls, client


def test_a_lead_speaks_tls(tmp_path: Path):
    tls, trusting = self_signed(tmp_path)
    tls.check()
    with serving(FakeBackend(), door=ClientPolicy(Edge(), tls, 0)) as lead:
        assert lead.url.startswith("https://")
        with httpx.Client(verify=trusting) as client:
            assert client.get(f"{lead.url}/health").status_code == 200
            body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "stream": True}
            stream = client.post(f"{lead.url}/v1/chat/completions", json=body)
            assert stream.text.endswith("data: [DONE]\n\n")
        with pytest.raises(httpx.ConnectError):  # nobody vouches for it
            httpx.get(f"{lead.url}/health")
        with pytest.raises(httpx.TransportError):
            httpx.get(lead.url.replace("https", "http"))


def missing(folder: Path) -> list[str]:
    return ["--ssl-key-file", str(folder / "none.pem"), "--ssl-cert-file", str(folder / "none.pem")]


def half(folder: Path) -> list[str]:
    return ["--ssl-cert-file", str(self_signed(folder)[0].certificate)]


def swapped(folder: Path) -> list[str]:
    tls = self_signed(folder)[0]
    return ["--ssl-key-file", str(tls.certificate), "--ssl-cert-file", str(tls.key)]


def of_another(folder: Path) -> list[str]:
    tls = self_signed(folder)[0]
    trustme.CA().issue_cert("127.0.0.1").private_key_pem.write_to_path(tls.key)
    return ["--ssl-key-file", str(tls.key), "--ssl-cert-file", str(tls.certificate)]


@pytest.mark.parametrize("make", [missing, half, swapped, of_another])
def test_bad_certificates_fail_at_start(make: Callable[[Path], list[str]], tmp_path: Path):
    with pytest.raises(StartupError, match="--ssl-key-file"):
        client_policy_of(read(LeadSettings, make(tmp_path)))


@pytest.mark.parametrize("with_tls", [False, True], ids=["plain", "tls"])
def test_loading_server_says_so(with_tls: bool, tmp_path: Path):
    tls, trusting = self_signed(tmp_path)
    scheme = "https" if with_tls else "http"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        base = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"
        with httpx.Client(verify=trusting, base_url=base) as client:
            with answering(
                listener, witnessed(create_waiting_app(LOADING, Edge())), tls if with_tls else None
            ):
                health = client.get("/health")
                assert (health.status_code, health.json()["status"]) == (503, "loading")
                validate("Health", health.json())
                ready = client.get("/ready")
                assert (ready.status_code, ready.json()) == (503, {"status": "loading"})
                assert int(ready.headers["retry-after"]) >= 1
                assert client.get("/").headers["content-type"].startswith("text/html")
                assert client.get("/web/chat.js").status_code == 200
                for response in (client.post("/v1/chat/completions", json={}), client.get("/v1/models")):
                    assert response.status_code == 503
                    validate("Error", response.json())
                    assert int(response.headers["retry-after"]) >= 1
                    assert response.headers["x-request-id"]
                    assert response.headers["connection"] == "close"
            assert listener.fileno() >= 0


def test_early_connection_waits_for_server():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with answering(listener, witnessed(create_waiting_app(LOADING, Edge())), None):
            pass
        address = listener.getsockname()
        with socket.create_connection(address) as early:
            early.sendall(b"GET /health HTTP/1.1\r\nHost: duo\r\n\r\n")
            state = Health("ok", 4, 0, 0, 0.0)
            with answering(listener, witnessed(create_waiting_app(state, Edge())), None):
                assert early.recv(1000).startswith(b"HTTP/1.1 200 ")
