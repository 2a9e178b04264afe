"""The evaluation prompts of the bundled models, spread over their categories."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATH = Path(__file__).parent / "prompts.jsonl"


@dataclass(frozen=True, slots=True)
class Prompt:
    """`messages` as the API takes them."""

    id: str
    messages: list[dict[str, Any]]


def load(n: int | None = None, path: Path = PATH) -> list[Prompt]:
    """n prompts spread evenly over the file (all if there are fewer), without those that offer tools: how
    a reply calls a tool is no matter of decoding speed."""
    with path.open() as file:
        rows: list[dict[str, Any]] = [json.loads(line) for line in file if line.strip()]
    prompts = [Prompt(row["id"], row["messages"]) for row in rows if "tools" not in row]
    if n is None or n >= len(prompts):
        return prompts
    return [prompts[(2 * i + 1) * len(prompts) // (2 * n)] for i in range(n)]
