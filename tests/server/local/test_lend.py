"""duo lend: what of a machine is lent, and what is told about it."""

from __future__ import annotations

import pytest

from server.errors import StartupError
from server.flags import read
from server.llama.devices import CPU, GPU, INTEGRATED, GgmlDevice
from server.local.lend import LendSettings, announcement, chosen, run_lender

PROCESSOR = GgmlDevice("CPU", "Xeon", CPU, 8 << 30, 1)
FIRST, SECOND = GgmlDevice("CUDA0", "H100", GPU, 80 << 30, 2), GgmlDevice("CUDA1", "H100", GPU, 70 << 30, 3)
SHARED = GgmlDevice("Metal", "M4", INTEGRATED, 16 << 30, 4)


@pytest.mark.parametrize(
    ("names", "known", "lent"),
    [
        ((), [PROCESSOR], [PROCESSOR]),
        ((), [FIRST, SHARED, SECOND, PROCESSOR], [FIRST, SECOND]),
        ((), [SHARED, PROCESSOR], [SHARED]),
        (("CPU", "CUDA1"), [FIRST, SECOND, PROCESSOR], [PROCESSOR, SECOND]),
    ],
)
def test_gpus_are_lent_before_cpu(names: tuple[str, ...], known: list[GgmlDevice], lent: list[GgmlDevice]):
    assert chosen(names, known) == lent


def test_missing_device_lists_existing_ones():
    with pytest.raises(StartupError, match="no CUDA7 here, but CUDA0, CPU"):
        chosen(["CUDA7"], [FIRST, PROCESSOR])


def test_lender_prints_what_to_type():
    [line] = announcement([FIRST, PROCESSOR], "127.0.0.1", 50052)
    assert "CUDA0 (H100, 81920 MiB), CPU (Xeon, 8192 MiB) on 127.0.0.1:50052" in line
    assert line.endswith("duo up --rpc 127.0.0.1:50052")


@pytest.mark.parametrize("host", ["10.0.0.2", "0.0.0.0"])
def test_remote_lender_warns_about_passwords(host: str):
    line, warning = announcement([PROCESSOR], host, 50052)
    assert "no password" in warning
    assert not line.endswith("0.0.0.0:50052"), "an address that the other machine can use"


def test_a_build_without_rpc_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("server.llama.devices.has_rpc", lambda: False)
    with pytest.raises(StartupError, match="has no RPC backend"):
        run_lender(read(LendSettings, []))
