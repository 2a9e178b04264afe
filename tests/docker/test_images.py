"""The images and the compose file agree with the project; no container engine is needed to see it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

REPOSITORY = Path(__file__).parents[2]
DOCKER = REPOSITORY / "docker"
COMPOSE = cast(dict[str, Any], yaml.safe_load((DOCKER / "compose.yaml").read_text()))
OURS = ("lead", "drafter")

each_of_ours = pytest.mark.parametrize("service", OURS)


def instructions(service: str) -> list[tuple[str, str]]:
    """Return (instruction, arguments) of the service's Dockerfile, without comments and with lines joined."""
    build = COMPOSE["services"][service]["build"]
    assert (DOCKER / build["context"]).resolve() == REPOSITORY
    text = (REPOSITORY / build["dockerfile"]).read_text()
    lines = re.sub(r"\\\n", " ", re.sub(r"(?m)^#.*\n", "", text)).splitlines()
    parts = [line.split(maxsplit=1) for line in lines if line.strip()]
    return [(name, arguments.strip()) for name, arguments in parts]


def last(service: str, name: str) -> str:
    return [arguments for instruction, arguments in instructions(service) if instruction == name][-1]


def test_compose_has_three_services() -> None:
    assert set(COMPOSE["services"]) == {"redis", *OURS}
    redis = COMPOSE["services"]["redis"]
    assert redis["healthcheck"]["test"][0] == "CMD-SHELL"
    assert "ports" not in redis, "prompts pass through it"


@each_of_ours
def test_the_command_is_one_the_project_installs(service: str) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    entry = json.loads(last(service, "ENTRYPOINT"))
    assert entry == {"lead": ["duo", "serve"], "drafter": ["duo-drafter"]}[service]
    assert entry[0] in project["project"]["scripts"]


@each_of_ours
def test_drafter_waits_for_redis(service: str) -> None:
    described = COMPOSE["services"][service]
    assert described["depends_on"] == {"redis": {"condition": "service_healthy"}}
    password = f"${{DUO_{service.upper()}_PASSWORD}}"
    assert described["environment"].pop("DUO_REDIS") == f"redis://{service}:{password}@redis:6379"
    wanted = {"lead": {"DUO_API_KEY": "${DUO_API_KEY:?the key that clients bring}"}, "drafter": {}}
    assert described["environment"] == wanted[service]


def test_redis_starts_with_the_roles(tmp_path: Path) -> None:
    """Run the service's command in a shell, with the file from here and its output beside."""
    redis = COMPOSE["services"]["redis"]
    assert redis["volumes"] == ["../deploy/redis:/roles:ro"]
    *_, script = redis["command"]
    script = script.replace("$$", "$").replace("/roles/", f"{REPOSITORY}/deploy/redis/")
    script = script.replace("/tmp/users.acl", str(tmp_path / "users.acl")).replace("exec ", "exec echo ")
    passwords = {"LEAD_PASSWORD": "one", "DRAFTER_PASSWORD": "two"}
    assert set(redis["environment"]) == set(passwords)
    said = subprocess.run(["sh", "-c", script], env=passwords | os.environ, capture_output=True, text=True)
    assert said.stdout.startswith(f"valkey-server --aclfile {tmp_path}/users.acl"), said.stderr
    written = (tmp_path / "users.acl").read_text()
    assert "user lead on >one " in written
    assert "user drafter on >two " in written


@each_of_ours
def test_no_machine_is_presumed(service: str) -> None:
    described = COMPOSE["services"][service]
    assert not {"deploy", "cpus", "mem_limit", "cpuset"} & set(described)


def test_lead_reports_its_health() -> None:
    lead = COMPOSE["services"]["lead"]
    assert lead["command"][-2:] == ["--host", "0.0.0.0"]
    (published,) = lead["ports"]
    port = published.rpartition(":")[2]
    assert last("lead", "EXPOSE") == port
    assert f"http://127.0.0.1:{port}/health" in last("lead", "HEALTHCHECK")


@each_of_ours
def test_image_runs_unprivileged(service: str) -> None:
    assert int(last(service, "USER")) > 0
    assert "HEALTHCHECK" in dict(instructions(service))


@each_of_ours
def test_health_check_compiles(service: str) -> None:
    python, flag, source = json.loads(last(service, "HEALTHCHECK").partition("CMD")[2])
    assert (python, flag) == ("python", "-c")
    compile(source, "healthcheck", "exec")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, as it will in the container")
def test_the_drafter_is_well_while_it_runs() -> None:
    source = json.loads(last("drafter", "HEALTHCHECK").partition("CMD")[2])[2]

    def status(pid: int) -> int:
        return subprocess.run(
            [sys.executable, "-c", source.replace("/proc/1/", f"/proc/{pid}/")], check=False
        ).returncode

    with subprocess.Popen([sys.executable, "-c", "input()", "duo-drafter"], stdin=subprocess.PIPE) as process:
        assert status(process.pid) == 0
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        assert status(process.pid) == 1
        process.kill()
    assert status(os.getpid()) == 1, "this is not a drafter"


@each_of_ours
def test_everything_copied_is_let_through_and_exists(service: str) -> None:
    ignored = REPOSITORY / f"{COMPOSE['services'][service]['build']['dockerfile']}.dockerignore"
    let_through = {line[1:] for line in ignored.read_text().splitlines() if line.startswith("!")}
    copied: set[str] = set()
    for name, arguments in instructions(service):
        if name == "COPY" and not arguments.startswith("--from"):
            copied.update(arguments.split()[:-1])
    assert copied == let_through
    assert [path for path in copied if not (REPOSITORY / path).exists()] == []
