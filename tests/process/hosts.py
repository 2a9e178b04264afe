"""Machines of a network, on one machine: network namespaces joined by a switch.

The switch delays, loses, cuts and heals. Packets are real, so it is TCP that notices.

Making them takes root on Linux, with iproute2 and /dev/net/tun; `why_not()` says what is missing.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import random
import selectors
import shutil
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

TUN = Path("/dev/net/tun")
NAMESPACES = Path("/run/netns")
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI, _CLONE_NEWNET = (
    0x400454CA,
    0x0001,
    0x1000,
    0x40000000,
)  # linux/if_tun.h, sched.h
LARGEST = 1 << 16  # bytes of a packet
DESTINATION = slice(16, 20)  # of an IPv4 header


def why_not() -> str | None:
    """Return what keeps this process from making hosts, or None."""
    if sys.platform != "linux" or os.geteuid():
        return "network namespaces are made by root on Linux"
    if shutil.which("ip") is None:
        return "network namespaces are made with ip, of iproute2"
    try:
        with Hosts("try"):
            return None
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no network namespace can be made here: {error}"


class Host:
    """A machine with one address.

    latency_s: of each packet from or to it. loss: share of these packets that never arrive. is_cut: none
    arrives. All may change at any time.
    """

    def __init__(self, name: str, number: int, ending: ExitStack) -> None:
        self.address = f"10.77.0.{number}"
        self.latency_s, self.loss, self.is_cut = 0.0, 0.0, False
        self._namespace = f"duo-{os.getpid()}-{name}"
        _ip("netns", "add", self._namespace)
        ending.callback(_ip, "netns", "del", self._namespace)
        self.packets = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
        ending.callback(os.close, self.packets)
        device = f"duo{os.getpid() % 100_000}-{number}"  # 15 characters at most
        request = struct.pack("16sH22x", device.encode(), _IFF_TUN | _IFF_NO_PI)
        fcntl.ioctl(self.packets, _TUNSETIFF, request)
        _ip("link", "set", device, "netns", self._namespace)
        inside = ("-n", self._namespace)
        _ip(*inside, "addr", "add", f"{self.address}/24", "dev", device)
        for each in ("lo", device):
            _ip(*inside, "link", "set", each, "up")
        self._thread = ThreadPoolExecutor(1, f"host-{name}", initializer=self._enter)
        ending.callback(self._thread.shutdown)

    def run(self, work: Callable[[], T]) -> T:
        """Call work() on this host, so that its sockets and processes belong to it."""
        return self._thread.submit(work).result()

    def _enter(self) -> None:
        with (NAMESPACES / self._namespace).open() as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")


class Hosts(ExitStack):
    """Hosts by their names, joined by a switch; leaving the context removes them."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        with ExitStack() as ending:
            self._by_name = {name: Host(name, i, ending) for i, name in enumerate(names, 1)}
            switch = _Switch(list(self._by_name.values()))
            ending.callback(switch.close)
            self.push(ending.pop_all())

    def __getitem__(self, name: str) -> Host:
        return self._by_name[name]


class _Switch:
    """A thread that forwards packets among hosts by their addresses.

    A seed draws which ones are lost.
    """

    def __init__(self, hosts: list[Host]) -> None:
        self._hosts = {bytes(map(int, host.address.split("."))): host for host in hosts}
        self._random = random.Random(7)
        self._late: list[tuple[float, int, Host, bytes]] = []  # due at, number, to, packet
        self._n = 0
        self._ended = False
        self._thread = threading.Thread(target=self._forward, name="switch")
        self._thread.start()

    def close(self) -> None:
        self._ended = True
        self._thread.join()

    def _forward(self) -> None:
        with selectors.DefaultSelector() as ready:
            for host in self._hosts.values():
                ready.register(host.packets, selectors.EVENT_READ, host)
            while not self._ended:
                wait_s = self._late[0][0] - time.monotonic() if self._late else 0.1
                for key, _ in ready.select(max(0.0, min(wait_s, 0.1))):
                    self._take(key.data)
                while self._late and self._late[0][0] <= time.monotonic():
                    _, _, to, packet = heapq.heappop(self._late)
                    self._give(to, packet)

    def _take(self, origin: Host) -> None:
        packet = os.read(origin.packets, LARGEST)
        to = self._hosts.get(packet[DESTINATION])
        if to is None or any(each.is_cut or self._random.random() < each.loss for each in (origin, to)):
            return
        self._n += 1
        due = time.monotonic() + origin.latency_s + to.latency_s
        heapq.heappush(self._late, (due, self._n, to, packet))

    def _give(self, to: Host, packet: bytes) -> None:
        with suppress(BlockingIOError):  # its queue is full: lost
            os.write(to.packets, packet)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
