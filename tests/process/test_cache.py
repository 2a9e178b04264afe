"""Conversations over a restart, as a user has them: a directory, SIGTERM, and the next turn is warm.

Or SIGKILL, and another lead with that directory goes on.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from server.cache.record import HEAD
from server.engine.residence import SHARE_NEW
from tests.process.duo import QUESTION, Duo, until

pytestmark = [pytest.mark.model, pytest.mark.timeout(180)]

NEXT = "Count from 3 to 14, please."  # no two tokens of the reply nearly tie, as with QUESTION
SOON_S = 60.0  # of work of an idle lead, which takes a second on an idle machine

# Rows of other widths and places change logits by up to 0.53 (section W of benchmarks/RESULTS.md), so texts
# may differ where two tokens are that close. Twice: what a wrong KV cache says could pass.
LOGITS_DIFFER = 1.0
LONG = "Every word of this has to be read. " * 60


def say(duo: Duo, history: list[Any], *, max_tokens: int = 120, **more: Any) -> tuple[str, int, int]:
    """Return the reply, its prompt's tokens, and how many of them were cached."""
    with openai.OpenAI(base_url=f"{duo.url}/v1", api_key="none") as client:
        reply = client.chat.completions.create(
            model="default", messages=history, temperature=0, max_tokens=max_tokens, extra_body=more
        )
    assert reply.usage
    assert reply.usage.prompt_tokens_details
    content = reply.choices[0].message.content or ""
    return content, reply.usage.prompt_tokens, reply.usage.prompt_tokens_details.cached_tokens or 0


def first_tokens(duo: Duo, history: list[Any], **more: Any) -> dict[str, float]:
    """Return log probabilities of the likeliest first tokens of a reply."""
    with openai.OpenAI(base_url=f"{duo.url}/v1", api_key="none") as client:
        reply = client.chat.completions.create(
            model="default",
            messages=history,
            temperature=0,
            max_tokens=1,
            logprobs=True,
            top_logprobs=20,
            extra_body=more,
        )
    logprobs = reply.choices[0].logprobs
    assert logprobs
    assert logprobs.content
    return {one.token: one.logprob for one in logprobs.content[0].top_logprobs}


def took(duo: Duo, salt: str) -> float:
    """Return the milliseconds to the first token of a long prompt, new or asked before with this salt."""
    if salt == "somebody else":
        duo.ask(LONG, max_tokens=1, cache_salt=salt)
    return duo.ask(LONG, max_tokens=1, cache_salt=salt)["timings"]["prompt_ms"]


@contextmanager
def serving(folder: Path, *flags: str) -> Generator[Duo]:
    """Yield a lead that ends cleanly."""
    with Duo(folder, "serve", "--threads", "1", "--parallel", "2", *flags) as duo:
        duo.wait_until_ready()
        yield duo
        assert duo.stop() == 0


def in_memory(duo: Duo) -> int:
    """Return the conversations saved in host memory."""
    metrics = httpx.get(f"{duo.url}/metrics").text
    found = re.search(r'^duo:cache_conversations\{tier="memory"\} (\d+)', metrics, re.MULTILINE)
    return int(found[1]) if found else 0


def test_turn_after_restart_is_warm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "measured"))
    history: list[Any] = [{"role": "user", "content": QUESTION}]
    flags = ("--cache-dir", str(tmp_path / "kept"), "--draft-max", "0")
    with serving(tmp_path, *flags) as first:
        content, n_prompt, n_cached = say(first, history)
        assert n_cached == 0
    history += [{"role": "assistant", "content": content}, {"role": "user", "content": NEXT}]
    assert len(list((tmp_path / "measured" / "duo").glob("pace-*.json"))) == 1
    with serving(tmp_path, *flags) as second:
        until(lambda: in_memory(second) == 1, SOON_S, "it was not read before anybody asked")
        again, n_again, n_cached = say(second, history)
        assert n_cached > n_prompt + 40
        assert n_again - n_cached < 30
        cold, _, n_cold = say(second, history, cache_salt="somebody else")
        assert n_cold == 0
        assert again == cold
        known = min(took(second, "somebody else") for _ in range(3))  # other programs may disturb one
        assert known < took(second, "a third one") / 2  # what a salt is there to hide
    files = list((tmp_path / "kept").glob("*.duo"))
    assert files
    files[0].write_bytes(files[0].read_bytes()[:-10])  # damaged: served without
    with serving(tmp_path, *flags) as third:
        assert say(third, history)[0] == again


def n_kept(directory: Path) -> int:
    """Return the tokens of the longest conversation in a directory."""
    heads = [path.read_bytes()[: HEAD.size] for path in directory.glob("*.duo")]
    return max((HEAD.unpack(head)[2] for head in heads), default=0)


def n_known(duo: Duo) -> int:
    """Return the conversations on disk that a lead knows of."""
    metrics = httpx.get(f"{duo.url}/metrics").text
    found = re.search(r'^duo:cache_conversations\{tier="disk"\} (\d+)', metrics, re.MULTILINE)
    return int(found[1]) if found else 0


def test_other_lead_continues_after_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "measured"))
    kept, history = tmp_path / "kept", list[Any]()
    flags = ("serve", "--threads", "1", "--parallel", "2", "--draft-max", "0", "--cache-dir", str(kept))
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    with Duo(folders[0], *flags) as one, Duo(folders[1], *flags) as two:
        for lead in (one, two):
            lead.wait_until_ready()
        n_prompt = 0
        for turn in range(10):
            history.append({"role": "user", "content": f"{QUESTION} Example {turn}."})
            content, n_prompt, _ = say(one, history, max_tokens=24)
            history.append({"role": "assistant", "content": content})
        until(lambda: n_kept(kept) * SHARE_NEW >= n_prompt * (SHARE_NEW - 1), SOON_S, "it is not on disk")
        one.stop(signal.SIGKILL)
        until(lambda: n_known(two) == len(list(kept.glob("*.duo"))), SOON_S, "the other lead does not see it")
        history.append({"role": "user", "content": "And in C?"})
        _, n_again, n_cached = say(two, history, max_tokens=24)
        outlook, anew = first_tokens(two, history), first_tokens(two, history, cache_salt="somebody else")
        assert n_cached * SHARE_NEW >= n_prompt * (SHARE_NEW - 1) - 24 * SHARE_NEW
        assert n_cached < n_again
        likeliest = max(anew, key=anew.__getitem__)
        assert outlook[likeliest] == pytest.approx(anew[likeliest], abs=LOGITS_DIFFER)


def test_unusable_directory_is_reported(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with Duo(tmp_path, "serve", "--threads", "1", "--cache-dir", str(tmp_path / "file")) as duo:
        assert duo.process.wait(60) == 1
        assert "--cache-dir" in duo.log.read_text()


def test_overflowing_conversations_return_from_memory(tmp_path: Path):
    histories: list[list[Any]] = [
        [{"role": "user", "content": f"{QUESTION} Example {i}. " + "Be thorough. " * 90}] for i in range(8)
    ]
    new: list[int] = []
    with serving(tmp_path, "--ctx-size", "2048", "--draft-max", "0") as duo:
        for _ in range(2):
            for history in histories:
                content, n_prompt, n_cached = say(duo, history, max_tokens=16)
                new.append(n_prompt - n_cached)
                history += [{"role": "assistant", "content": content}, {"role": "user", "content": "Go on."}]
        assert in_memory(duo) > 0
    assert sum(new[:8]) > 2048
    assert max(new[8:]) < 40
