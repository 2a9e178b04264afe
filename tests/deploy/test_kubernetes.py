"""deploy/kubernetes: manifests that Kubernetes would take, of what the images are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import kubernetes_validate  # pyright: ignore[reportMissingTypeStubs]
import pytest
import yaml

from server.flags import read
from server.settings import LeadSettings

MANIFEST = Path(__file__).parents[2] / "deploy" / "kubernetes" / "duo.yaml"
OBJECTS = [cast(dict[str, Any], one) for one in yaml.safe_load_all(MANIFEST.read_text())]


def named(one: dict[str, Any]) -> str:
    return f"{one['kind']} {one['metadata']['name']}"


def containers() -> Iterator[dict[str, Any]]:
    for one in OBJECTS:
        yield from one["spec"].get("template", {"spec": {"containers": []}})["spec"]["containers"]


@pytest.mark.parametrize("one", OBJECTS, ids=named)
def test_the_schema_of_kubernetes_takes_it(one: dict[str, Any]):
    version: str = kubernetes_validate.latest_version()  # pyright: ignore
    kubernetes_validate.validate(one, version, strict=True)  # pyright: ignore


def test_images_and_flags_exist():
    found = {one["name"]: one for one in containers()}
    assert {name: one["image"] for name, one in found.items() if name != "redis"} == {
        "lead": "duo-lead",
        "drafter": "duo-drafter",
    }
    settings = read(LeadSettings, found["lead"]["args"])
    assert settings.port == found["lead"]["ports"][0]["containerPort"]
    for one in (found["lead"], found["drafter"]):
        names = {variable["name"] for variable in one["env"]}
        assert {"PASSWORD", "DUO_REDIS"} <= names


def test_services_find_their_pods():
    labels = [one["spec"]["template"]["metadata"]["labels"] for one in OBJECTS if "template" in one["spec"]]
    for one in OBJECTS:
        if one["kind"] == "Service":
            assert one["spec"]["selector"] in labels
