"""openapi.yaml by request: which operation a method and a path are, and what it may answer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import orjson
from jsonschema_rs import Draft202012Validator

from tests.contract.contract import CONTRACT

ANSWERED_WITH_ERRORS = frozenset({401, 403, 404, 405, 503})
"""What requests that are no operation of the contract may be answered with."""
DONE = b"[DONE]"


class ContractError(AssertionError):
    """An answer that the contract does not list."""


@dataclass(frozen=True, slots=True)
class Operation:
    """A method and a path of the contract, with their description."""

    name: str
    path: str
    item: dict[str, Any]

    def answer(self, status: int) -> dict[str, Any]:
        """Return the description of a status, references followed.

        Raises ContractError if it is not listed.
        """
        try:
            return resolved(self.item["responses"][str(status)])
        except KeyError:
            raise ContractError(f"{self.name} does not list {status}") from None


def resolved(part: dict[str, Any]) -> dict[str, Any]:
    """Return what a reference stands for."""
    while "$ref" in part:
        found: Any = CONTRACT
        for name in part["$ref"].removeprefix("#/").split("/"):
            found = found[name]
        part = found
    return part


def operations() -> Iterator[Operation]:
    """Yield every operation."""
    for path, item in CONTRACT["paths"].items():
        for method, operation in item.items():
            yield Operation(f"{method.upper()} {path}", path, operation)


@cache
def _patterns() -> list[tuple[str, re.Pattern[str], Operation]]:
    found: list[tuple[str, re.Pattern[str], Operation]] = []
    for operation in operations():
        method, path = operation.name.split(" ")
        # names of models may have slashes, and names of streams contain those
        place = ".+" if path in ("/v1/models/{id}", "/v1/stream/{conv_id}") else "[^/]+"
        pattern = re.sub(r"\{\w+\}", place, re.sub(r"^/v1/", "/(?:v1/)?", path))
        pattern += "/?" if path == "/v1/models" else ""  # the only one with or without a slash at its end
        found.append((method, re.compile(pattern), operation))
    return sorted(
        found, key=lambda one: one[2].path.startswith("/v1/")
    )  # /completions is not /v1/completions


def operation_of(method: str, path: str) -> Operation | None:
    """Return the operation, or None if the contract lacks it.

    A HEAD is the GET without its body.
    """
    wanted = "GET" if method == "HEAD" else method
    for known, pattern, operation in _patterns():
        if known == wanted and pattern.fullmatch(path):
            return operation
    return None


@cache
def _validator(schema: bytes) -> Draft202012Validator:
    return Draft202012Validator({**orjson.loads(schema), "components": CONTRACT["components"]})


def check_value(schema: dict[str, Any], data: bytes, what: str) -> None:
    """Check that these bytes are JSON that fits. Raises ContractError."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ContractError(f"{what} is no JSON: {data[:200]!r}") from error
    error = next(iter(_validator(orjson.dumps(schema)).iter_errors(value)), None)
    if error is not None:
        place = "/".join(map(str, error.instance_path))
        raise ContractError(f"{what}, at /{place}: {error.message[:500]}")


def check_event(schema: dict[str, Any], event: bytes, what: str) -> None:
    """Check one event of a stream: a comment, [DONE], a chunk that fits, or an Error.

    It comes without its blank line. Raises ContractError.
    """
    for line in event.split(b"\n"):
        name, _, value = line.partition(b": ")
        if name == b"data" and value != DONE:
            failed = value.startswith(b'{"error":')
            check_value({"$ref": "#/components/schemas/Error"} if failed else schema, value, what)
        elif name not in (b"data", b"event", b""):
            raise ContractError(f"{what} has a line {line[:200]!r}")


def check_headers(answer: dict[str, Any], present: Iterable[str], what: str) -> None:
    """Check that the described headers are there. Raises ContractError."""
    for name in answer.get("headers", {}):
        if name.lower() not in present:
            raise ContractError(f"{what} has no {name}")
