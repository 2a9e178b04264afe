"""A master, a replica and a sentinel as processes, with the users of deploy/redis."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import redis

from server.local.embedded import find_binary
from server.speculation.wire.presence import Role
from tests.process.duo import free_port, until

SOON_S = 60.0

SERVICE = "drafts"
ROLES = Path(__file__).parents[2] / "deploy" / "redis"
PASSWORDS = {"LEAD": "one", "DRAFTER": "two", "REPLICA": "three", "SENTINEL": "four"}
SENTINEL_CONF = """
port {port}
bind 127.0.0.1
dir {folder}
requirepass watch
sentinel monitor drafts 127.0.0.1 {master} 1
sentinel auth-user drafts sentinel
sentinel auth-pass drafts four
sentinel down-after-milliseconds drafts 60000
sentinel failover-timeout drafts 2000
"""


class Watched:
    """The three processes.

    The sentinel's own password is "watch".
    """

    def __init__(self, folder: Path, ending: ExitStack, pool: str = "default") -> None:
        self._folder, self._ending = folder, ending
        roles = "".join((ROLES / name).read_text() for name in ("users.acl", "failover.acl"))
        for role, password in PASSWORDS.items():
            roles = roles.replace(f"{role}_PASSWORD", password)
        (folder / "users.acl").write_text(roles.replace("{default}", f"{{{pool}}}"))
        self.ports = [free_port(), free_port()]
        self.sentinel_port = free_port()
        master, replica = self.ports
        self.master = self._started("master", *self._of_server(master))
        self.replica = self._started(
            "replica", *self._of_server(replica), "--replicaof", f"127.0.0.1 {master}"
        )
        until(lambda: self._link_of(replica) == "up", SOON_S, "the replica has no master")
        conf = folder / "sentinel.conf"
        fields = {"port": self.sentinel_port, "folder": folder, "master": master}
        conf.write_text(SENTINEL_CONF.format(**fields))
        self._started("sentinel", str(conf), "--sentinel")
        until(self._watches, SOON_S, "the sentinel does not see them")

    def kill_master(self) -> None:
        self.be_attentive()
        self.master.kill()

    def be_attentive(self) -> None:
        """Let the sentinel miss a master in 1.5 s.

        Before, a machine that stands still causes no failover.
        """
        sentinel = self._client(self.sentinel_port, None, "watch")
        sentinel.sentinel_set(SERVICE, "down-after-milliseconds", 1500)

    def begins_failover(self) -> bool:
        """Return True if the sentinel starts a failover, which needs word from the replica itself."""
        sentinel: Any = self._client(self.sentinel_port, None, "watch")
        try:
            return bool(sentinel.execute_command("SENTINEL FAILOVER", SERVICE))
        except redis.ResponseError as error:
            if not str(error).startswith("NOGOODSLAVE"):
                raise
            return False

    def url(self, role: Role) -> str:
        nobody = free_port()  # a sentinel that is down: the next one is asked
        places = f"127.0.0.1:{nobody},127.0.0.1:{self.sentinel_port}"
        account = f"{role}:{PASSWORDS[role.upper()]}"
        return f"redis+sentinel://{account}@{places}/{SERVICE}?sentinel_password=watch"

    def role_of(self, port: int) -> str:
        return str(self._client(port).info("replication")["role"])

    def is_down(self) -> bool:
        """Return True if the sentinel takes the master for dead."""
        found: Any = self._client(self.sentinel_port, None, "watch").sentinel_master(SERVICE)
        return bool(found["is_sdown"])

    def _link_of(self, port: int) -> str:
        try:
            return str(self._client(port).info("replication").get("master_link_status"))
        except redis.ConnectionError:
            return "down"

    def _of_server(self, port: int) -> list[str]:
        options = {"port": port, "bind": "127.0.0.1", "save": "", "aclfile": self._folder / "users.acl"}
        options |= {"masteruser": "replica", "masterauth": "three", "repl-diskless-sync-delay": 0}
        return [part for name, value in options.items() for part in (f"--{name}", str(value))]

    def _client(self, port: int, user: str | None = "sentinel", password: str = "four") -> redis.Redis:
        client = redis.Redis("127.0.0.1", port, username=user, password=password, decode_responses=True)
        self._ending.callback(client.close)
        return client

    def _watches(self) -> bool:
        """Return True if the sentinel knows the replica and that the master is well."""
        try:
            found: Any = self._client(self.sentinel_port, None, "watch").sentinel_master(SERVICE)
        except redis.ConnectionError:
            return False
        return found["num-slaves"] == 1 and not found["is_sdown"]

    def _started(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        folder = self._folder / name
        folder.mkdir()
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen([find_binary(), *arguments], cwd=folder, stdout=log)
        self._ending.callback(process.wait)
        self._ending.callback(process.kill)
        return process
