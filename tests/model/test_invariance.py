"""Drafters never change the text: real models, real processes, a real Redis, real signals.

Each case also asserts that some drafts were accepted and some rejected.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pytest

from drafters.drafter_settings import BUNDLED_MODEL
from server.engine.events import Committed
from server.engine.request import GenerationRequest
from server.llama.backend import Backend, Vocabulary
from server.llama.llamacpp import LlamaBackend
from server.local.embedded import EmbeddedServer
from server.sampling.params import SamplingParams
from tests.model.asking import accepted_and_drafted
from tests.model.conftest import redis_server
from tests.model.live import PAUSES_S, DrafterProcess, How, Padded, ThreadedDrafter, lead
from tests.model.meddler import Meddler
from tests.support import Outcome

pytestmark = [pytest.mark.model, pytest.mark.redis, pytest.mark.timeout(300)]

QUESTIONS = (
    "Give a thorough introduction to regular expressions in Python.",
    "How would you explain generators to a colleague?",
    "Write a context manager that measures time.",
    "Illustrate the difference between concurrency and parallelism in Python.",
)
N_TOKENS = {1: 220, 4: 90}
DRAFT_MAX = {1: 8, 4: 3}  # widths of up to 16 rows


def asks(vocabulary: Vocabulary, n_sessions: int, temperature: float) -> list[GenerationRequest]:
    """Return requests without stop tokens, whose long replies are partly guessed right."""
    return [
        GenerationRequest(
            vocabulary.tokenize(
                f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n", special=True
            ),
            SamplingParams(temperature, top_k=0, top_p=1.0, min_p=0.0, seed=100 + i),
            N_TOKENS[n_sessions],
        )
        for i, question in enumerate(QUESTIONS[:n_sessions])
    ]


class Observed(NamedTuple):
    """What a client sees of a reply, without cached tokens.

    A prompt admitted while another is evaluated shares its beginning only if it comes late enough.
    """

    tokens: tuple[int, ...]
    reason: str
    n_prompt: int
    n_predicted: int


def observable(outcome: Outcome) -> Observed:
    stats = outcome.finished.stats
    return Observed(outcome.tokens, outcome.finished.reason, stats.n_prompt, stats.n_predicted)


Alone: TypeAlias = dict[tuple[int, float], list[Observed]]
"""Replies without drafters by number of sessions and temperature."""


@pytest.fixture(scope="module")
def alone() -> Alone:
    return {}


Director = Callable[[int], None]


class Stage:
    """Starts the drafters of a case, which end with the stack."""

    def __init__(self, server: EmbeddedServer, draft: Path, stack: ExitStack) -> None:
        self.server = server
        self._draft = draft
        self._stack = stack

    def drafter(self) -> DrafterProcess:
        return self._stack.enter_context(closing(DrafterProcess(self.server.url, self._draft)))

    def threaded(self, *, copies: int = 1, delay_s: float = 0.0) -> None:
        drafter = ThreadedDrafter(self.server.url, self._draft, copies=copies, delay_s=delay_s)
        self._stack.enter_context(closing(drafter))

    def meddler(self) -> None:
        self._stack.enter_context(closing(Meddler(self.server.url, self._draft)))


def once(at: int, act: Callable[[], object]) -> Director:
    """Call act() once, when `at` tokens are committed."""
    done = threading.Event()

    def direct(n: int) -> None:
        if n >= at and not done.is_set():
            done.set()
            act()

    return direct


def both(*directors: Director) -> Director:
    def direct(n: int) -> None:
        for one in directors:
            one(n)

    return direct


def good(stage: Stage) -> Director:
    stage.drafter()
    return lambda n: None


def hostile(stage: Stage) -> Director:
    stage.meddler()
    return good(stage)


def two(stage: Stage) -> Director:
    stage.drafter()
    return good(stage)


def duplicated(stage: Stage) -> Director:
    stage.threaded(copies=2)
    return lambda n: None


def stale(stage: Stage) -> Director:
    """Send late drafts, which nearly always fit and are right, and the meddler's wrong ones."""
    stage.threaded(delay_s=0.03)
    stage.meddler()
    return lambda n: None


def killed(stage: Stage) -> Director:
    process = stage.drafter()
    return once(120, lambda: process.signal(signal.SIGKILL))


def stopped_and_continued(stage: Stage) -> Director:
    process = stage.drafter()
    return both(
        once(40, lambda: process.signal(signal.SIGSTOP)), once(180, lambda: process.signal(signal.SIGCONT))
    )


def redis_killed(stage: Stage) -> Director:
    stage.drafter()
    return once(120, lambda: os.kill(stage.server.pid, signal.SIGKILL))


CASES: dict[str, tuple[Callable[[Stage], Director], int]] = {
    "good": (good, 1),
    "hostile": (hostile, 2),
    "two": (two, 2),
    "duplicated": (duplicated, 1),
    "stale": (stale, 2),
    "killed": (killed, 1),
    "stopped_and_continued": (stopped_and_continued, 1),
    "redis_killed": (redis_killed, 1),
}


# (temperature, sessions) of each case. Every two of the three meet; tests/invariance has all of them on toys.
BOTH = (((0.0, 4), (1.0, 1)), ((0.0, 1), (1.0, 4)))
SETTINGS = [(case, *setting) for i, case in enumerate(CASES) for setting in BOTH[i % 2]]


def target_for(backend: LlamaBackend, temperature: float) -> Backend:
    """Return the backend; at temperature 1, where near-ties are common, no row uses single-row kernels."""
    return Padded(backend) if temperature else backend


async def expected_of(
    alone: Alone, backend: LlamaBackend, n_sessions: int, temperature: float
) -> list[Observed]:
    """Return the replies without drafters, computed once."""
    if (n_sessions, temperature) not in alone:
        async with lead(target_for(backend, temperature), None) as plain:
            outcomes = await plain.run(asks(backend.vocab, n_sessions, temperature))
        alone[n_sessions, temperature] = list(map(observable, outcomes))
    return alone[n_sessions, temperature]


async def with_right_and_wrong(
    run: Callable[[float], Awaitable[list[Outcome]]], expected: list[Observed]
) -> list[Outcome]:
    """Return the first outcomes with guesses of both kinds.

    run() takes the lead's pause after a step in seconds, which gives drafters time.
    """
    tried: list[tuple[int, int]] = []
    for pause_s in (0.0, *PAUSES_S):
        outcomes = await run(pause_s)
        assert list(map(observable, outcomes)) == expected
        accepted, drafted = accepted_and_drafted(outcomes)
        if 0 < accepted < drafted:
            return outcomes
        tried.append((accepted, drafted))
    pytest.fail(f"guesses that were accepted, and all of them: {tried}")


@pytest.mark.parametrize(("case", "temperature", "n_sessions"), SETTINGS)
async def test_no_drafter_changes_the_text(
    case: str,
    temperature: float,
    n_sessions: int,
    f32_target: LlamaBackend,
    f32_pair: tuple[Path, Path],
    alone: Alone,
):
    set_up, n_drafters = CASES[case]

    async def run(pause_s: float) -> list[Outcome]:
        with redis_server() as server, ExitStack() as stack:
            how = How(draft_max=DRAFT_MAX[n_sessions], pause_s=pause_s)
            async with lead(target_for(f32_target, temperature), server, how) as live:
                direct = set_up(Stage(server, f32_pair[1], stack))
                await live.until_drafters(n_drafters)
                return await live.run(asks(f32_target.vocab, n_sessions, temperature), direct)

    await with_right_and_wrong(run, await expected_of(alone, f32_target, n_sessions, temperature))


async def test_the_quantised_pair_too_on_one_thread(q8_target: LlamaBackend, server: EmbeddedServer):
    """Temperature 1 is left out: near-ties are common, and quantised activations enlarge differences."""
    requests = asks(q8_target.vocab, 1, 0.0)
    async with lead(q8_target, None) as plain:
        expected = list(map(observable, await plain.run(requests)))

    async def run(pause_s: float) -> list[Outcome]:
        async with lead(q8_target, server, How(pause_s=pause_s)) as live:
            await live.until_drafters(1)
            return await live.run(requests)

    with closing(DrafterProcess(server.url, BUNDLED_MODEL)):
        await with_right_and_wrong(run, expected)


@pytest.mark.parametrize(("temperature", "n_sessions"), BOTH[0])
async def test_joining_drafter_changes_no_text(
    temperature: float,
    n_sessions: int,
    f32_target: LlamaBackend,
    f32_pair: tuple[Path, Path],
    server: EmbeddedServer,
    alone: Alone,
):
    """The drafter's process is stopped until the lead forgets it, then continued."""

    async def run(pause_s: float) -> list[Outcome]:
        how = How(draft_max=DRAFT_MAX[n_sessions], pause_s=pause_s)
        with ExitStack() as stack:
            process = Stage(server, f32_pair[1], stack).drafter()
            async with lead(target_for(f32_target, temperature), server, how) as live:
                await live.until_drafters(1)
                process.signal(signal.SIGSTOP)
                await live.until_drafters(0)
                requests = asks(f32_target.vocab, n_sessions, temperature)
                return await live.run(requests, once(20, lambda: process.signal(signal.SIGCONT)))

    outcomes = await with_right_and_wrong(run, await expected_of(alone, f32_target, n_sessions, temperature))
    for outcome in outcomes:
        first = next(e for e in outcome.events if isinstance(e, Committed))
        assert not any(first.sources)


async def test_a_stop_token_inside_an_accepted_run(
    f32_target: LlamaBackend, f32_pair: tuple[Path, Path], server: EmbeddedServer, alone: Alone
):
    """The stop token occurs in the plain text, so accepted drafts go beyond it."""
    [whole] = await expected_of(alone, f32_target, 1, 0.0)
    [request] = asks(f32_target.vocab, 1, 0.0)
    stopped = [replace(request, stop_tokens=frozenset({token})) for token in whole.tokens[30:200:40]]
    async with lead(f32_target, None) as plain:
        expected = [observable(outcome) for one in stopped for outcome in await plain.run([one])]
    assert all(one.reason == "stop" for one in expected)
    n_inside = 0
    with closing(DrafterProcess(server.url, f32_pair[1])):
        for pause_s in (0.0, *PAUSES_S):
            async with lead(f32_target, server, How(pause_s=pause_s)) as live:
                await live.until_drafters(1)
                outcomes = [outcome for one in stopped for outcome in await live.run([one])]
            assert list(map(observable, outcomes)) == expected
            lasts = [outcome.events[-2] for outcome in outcomes]
            n_inside = sum(isinstance(one, Committed) and one.n_drafted > len(one.tokens) for one in lasts)
            if n_inside:
                break
    assert n_inside > 0
