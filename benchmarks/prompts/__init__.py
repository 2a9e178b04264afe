"""The prompts that every benchmark asks.

Claims are measured with GENERAL: 60 prompts on facts, code, writing, mathematics, chat, extraction, one
document of 3,000 tokens and several turns. No model or setting of duo is tuned for them. PYTHON suits the toy
pair, which knows nothing else; golden runs under the virtual clock use it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
GENERAL, PYTHON = "general", "python"
DOCUMENT_MARK = "{document}"  # in a prompt: stands for the text of document.txt
HARD_TEXTS = (
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
    """A request of a benchmark to a server."""

    id: str  # its kind and number: code-03
    messages: list[dict[str, Any]]  # as the API takes them
    salt: str = ""  # the request's cache_salt; a prompt with a new one finds no cached prefix
    more: dict[str, Any] = field(default_factory=dict[str, Any])  # other fields of the request

    @property
    def kind(self) -> str:
        """The kind of text, such as code."""
        return self.id.rpartition("-")[0]


def load(n: int | None = None, subject: str = GENERAL) -> list[Prompt]:
    """Return prompts spread evenly over the kinds of a subject.

    Prompts that offer tools are left out, since tool calls say nothing about decoding speed.

    Args:
        n: Number of prompts; all if None or if there are fewer.
        subject: GENERAL or PYTHON.
    """
    document = (FOLDER / "document.txt").read_text().strip()
    with (FOLDER / f"{subject}.jsonl").open() as file:
        rows: list[dict[str, Any]] = [json.loads(line) for line in file if line.strip()]
    for message in (message for row in rows for message in row["messages"]):
        message["content"] = message["content"].replace(DOCUMENT_MARK, document)
    prompts = [Prompt(row["id"], row["messages"]) for row in rows if "tools" not in row]
    if n is None or n >= len(prompts):
        return prompts
    return [prompts[(2 * i + 1) * len(prompts) // (2 * n)] for i in range(n)]


def hard() -> list[Prompt]:
    """Return prompts for endless sampled replies, for which the toy pair was not trained.

    The toy draft model is right for a quarter of their tokens.
    """
    more = {"temperature": 1, "seed": 3, "ignore_eos": True}
    asked = enumerate(HARD_TEXTS, start=1)
    return [Prompt(f"hard-{i:02}", [{"role": "user", "content": text}], more=more) for i, text in asked]


def endless(subject: str = GENERAL) -> Iterator[Prompt]:
    """Yield all prompts of a subject again and again, each time with another salt."""
    prompts = load(subject=subject)
    for turn in itertools.count():
        yield from (replace(prompt, salt=f"turn {turn}") for prompt in prompts)
