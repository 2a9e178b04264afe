"""The evaluation prompts of the bundled models, spread over their categories."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

PATH = Path(__file__).parent / "prompts.jsonl"
HARD = (
    "Compose a limerick about volcanoes, in Norwegian.",
    "List the kings of Sweden with one remark on each.",
    "qzx vorpal 8841 kettle? blue seventeen;",
    "Recite a poem on the moon over Kyoto, with much feeling.",
    "Translate into French: the old mill stands beside the river.",
    "Tell a long story of a fox who steals the ship of a merchant.",
    "Give me 30 random words, no two alike.",
    "Write down 40 random digits, then 40 other ones.",
    "What did the senator reply to the farmers about the drought of 1911?",
    "Invent names for twelve planets and describe their weather.",
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """`messages` as the API takes them. salt: the cache_salt; with another one a known
    prompt is as good as new. more: other fields of the request."""

    id: str
    messages: list[dict[str, Any]]
    salt: str = ""
    more: dict[str, Any] = field(default_factory=dict[str, Any])


def load(n: int | None = None, path: Path = PATH) -> list[Prompt]:
    """n prompts spread evenly over the file (all if there are fewer), without those that offer tools: how
    a reply calls a tool is no matter of decoding speed."""
    with path.open() as file:
        rows: list[dict[str, Any]] = [json.loads(line) for line in file if line.strip()]
    prompts = [Prompt(row["id"], row["messages"]) for row in rows if "tools" not in row]
    if n is None or n >= len(prompts):
        return prompts
    return [prompts[(2 * i + 1) * len(prompts) // (2 * n)] for i in range(n)]


def hard() -> list[Prompt]:
    """Prompts that the bundled models were not trained for, sampled, without an end: a draft model is right
    for a quarter of the tokens."""
    more = {"temperature": 1, "seed": 3, "ignore_eos": True}
    asked = enumerate(HARD, start=1)
    return [Prompt(f"hard-{i:02}", [{"role": "user", "content": text}], more=more) for i, text in asked]


def endless() -> Iterator[Prompt]:
    """All prompts again and again, each time with another salt."""
    prompts = load()
    for turn in itertools.count():
        yield from (replace(prompt, salt=f"turn {turn}") for prompt in prompts)
