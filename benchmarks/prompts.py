"""The evaluation prompts of the bundled models, spread over their categories."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

PATH = Path(__file__).parent / "prompts.jsonl"


@dataclass(frozen=True, slots=True)
class Prompt:
    """`messages` as the API takes them. salt: the cache_salt; with another one a known
    prompt is as good as new."""

    id: str
    messages: list[dict[str, Any]]
    salt: str = ""


def load(n: int | None = None, path: Path = PATH) -> list[Prompt]:
    """n prompts spread evenly over the file (all if there are fewer), without those that offer tools: how
    a reply calls a tool is no matter of decoding speed."""
    with path.open() as file:
        rows: list[dict[str, Any]] = [json.loads(line) for line in file if line.strip()]
    prompts = [Prompt(row["id"], row["messages"]) for row in rows if "tools" not in row]
    if n is None or n >= len(prompts):
        return prompts
    return [prompts[(2 * i + 1) * len(prompts) // (2 * n)] for i in range(n)]


def endless() -> Iterator[Prompt]:
    """All prompts again and again, each time with another salt."""
    prompts = load()
    for turn in itertools.count():
        yield from (replace(prompt, salt=f"turn {turn}") for prompt in prompts)
