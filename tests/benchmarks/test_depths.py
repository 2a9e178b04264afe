"""Acceptance by depth is counted alike for duo and for llama-server."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import depths
from benchmarks.depths import Said, asked, by_duo, shares
from benchmarks.with_block import BLOCK, join
from server.errors import StartupError
from server.settings import BUNDLED_MODEL


def test_of_a_depth_those_count_whose_earlier_guesses_were_right():
    said = Said(list(range(12)), [(0, 0, 0), (1, 3, 3), (5, 3, 1), (7, 3, 0), (8, 2, 1), (10, 3, 1)])
    assert said.accepted(3) == [3, 1, 0]  # without a shorter chain, and the last step
    assert shares([said, said], 3) == [(4, 6), (2, 4), (2, 2)]
    assert shares([], 1) == [(0, 0)]


def test_steps_of_llama_server_are_known_by_the_counts_of_their_tokens(monkeypatch: pytest.MonkeyPatch):
    counts = [(0, 0), (3, 2), (3, 2), (3, 2), (6, 2), (9, 5)]
    chunks: list[dict[str, Any]] = [
        {"tokens": [10 + i], "stop": False, "timings": {"draft_n": n, "draft_n_accepted": right}}
        for i, (n, right) in enumerate(counts)
    ]
    chunks.append({"tokens": [], "stop": True, "timings": {"draft_n": 9, "draft_n_accepted": 5}})
    lines = [(0.0, f"data: {json.dumps(chunk)}\n".encode()) for chunk in chunks]
    bodies: list[dict[str, Any]] = []

    def call(port: int, path: str, body: dict[str, Any]) -> list[tuple[float, bytes]]:
        bodies.append(body)
        return [(0.0, b"\n"), *lines]

    monkeypatch.setattr(depths, "call", call)
    said = asked(1, (5, 6), 200)
    assert said.tokens == [10, 11, 12, 13, 14, 15]
    assert said.steps == [(1, 3, 2), (4, 3, 0), (5, 3, 3)]
    assert said.accepted(3) == [2, 0]
    assert bodies[0]["prompt"] == [5, 6]
    assert bodies[0]["cache_prompt"] is False


@pytest.mark.model
def test_duo_guesses_chains_of_one_length(tmp_path: Path):
    path = tmp_path / "joined.gguf"
    join(BUNDLED_MODEL, BLOCK, path)
    args = Namespace(model=path, threads=1, prompts=2, max_tokens=40)
    plain = [said.tokens for said in by_duo(args, 1)]
    replies = by_duo(args, 3)
    assert [said.tokens for said in replies] == plain
    for said in replies:
        first, *later = said.steps
        assert first == (0, 0, 0)
        assert [start for start, _, _ in later] == [start + right + 1 for start, _, right in said.steps[:-1]]
        assert all(n == min(3, 39 - start) for start, n, _ in later)
    right, tried = shares(replies, 3)[0]
    assert 10 < right < tried
    with pytest.raises(StartupError, match=r"has no prediction block: .*with_block makes one"):
        by_duo(Namespace(model=BUNDLED_MODEL, threads=1, prompts=1, max_tokens=2), 1)
