"""Measure what a forecast needs: step times of target and draft model, and acceptance of the guesses."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import numpy as np

from server.doctor.forecast import MAX_GUESSES, Guess
from server.lead.calibration import DISTURBED, measure
from server.llama.backend import Backend, Batch, Logits
from server.llama.llamacpp import LlamaBackend, LlamaOptions

TEXT_S = 30.0  # maximum seconds for all replies. Half: acceptance is measured with half as many tokens
MAX_JUDGED_TOKENS = 160  # maximum tokens of a reply
# Untimed first guesses, and timed guesses. Half: the median scatters by 1.4 times as much.
WARM_UP, TIMED_GUESSES = 3, 20
# Maximum measurements of the same steps, until two agree. Half: other work of a few seconds prevents a
# verdict; twice: a busy machine is reported only after half a minute.
MAX_MEASUREMENTS = 4
# Maximum plausible time of n rows, relative to n single rows one by one. Half: scatter counts as a
# disturbance; twice: a disturbed "4 rows take 12 times as long as one" is reported as a fact.
DEAREST = 2.0
SETTLE_S = 0.2  # seconds until a draft model beside the target runs at its usual pace


class DisturbedError(Exception):
    """Measurements of the same steps do not agree: other programs keep the machine busy."""


def step_seconds(backend: Backend, *, alone: bool = True) -> list[float]:
    """Measure the seconds of a decode by its number of rows, and leave the KV cache empty.

    Args:
        backend: The model.
        alone: True if no drafter runs at the same time.

    Returns:
        Seconds for 0 to MAX_GUESSES + 1 rows, interpolated between measured numbers of rows; all 0 if nothing
        could be measured.

    Raises:
        DisturbedError: MAX_MEASUREMENTS measurements do not agree.
    """
    seen: dict[int, list[float]] = {}
    for _ in range(MAX_MEASUREMENTS):
        ran_s, waited_s = _on_cores()
        for width, seconds in measure(backend, MAX_GUESSES + 4).items():
            seen.setdefault(width, []).append(seconds)
        ran_s, waited_s = (now - then for now, then in zip(_on_cores(), (ran_s, waited_s), strict=True))
        shortest = {0: 0.0} | {width: min(times) for width, times in sorted(seen.items())}
        crowded = alone and ran_s < DISTURBED * (ran_s + waited_s)
        if not seen or (not crowded and all(map(_times_agree, seen.values())) and _are_plausible(shortest)):
            found = np.interp(range(MAX_GUESSES + 2), list(shortest), list(shortest.values()))
            return list(map(float, found))
    raise DisturbedError


def _on_cores() -> tuple[float, float]:
    """Return (seconds that threads of this process ran, seconds that they waited for a core).

    Both are 0 where the kernel does not provide them.
    """
    try:
        tasks = [task.read_text().split() for task in Path("/proc/self/task").glob("*/schedstat")]
    except OSError:  # a thread has ended
        return 0.0, 0.0
    return sum(int(task[0]) for task in tasks) / 1e9, sum(int(task[1]) for task in tasks) / 1e9


def _times_agree(times: Sequence[float]) -> bool:
    """Return True if another measurement has confirmed the shortest time."""
    best, *others = sorted(times)
    return bool(others) and best > DISTURBED * others[0]


def _are_plausible(seconds: Mapping[int, float]) -> bool:
    """Return True if no decode takes much longer than decoding its rows one by one."""
    single_s = seconds.get(1, 0.0)
    return not single_s or all(s <= DEAREST * rows * single_s for rows, s in seconds.items())


def replies(backend: Backend, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the model's reply to each prompt at temperature 0, and leave the KV cache empty.

    Replies are cut short so that all of them together take about TEXT_S seconds.
    """
    deadline = time.perf_counter() + TEXT_S
    said: list[list[int]] = []
    for i, prompt in enumerate(prompts):
        now = time.perf_counter()
        said.append(_generate_reply(backend, prompt, now + (deadline - now) / (len(prompts) - i)))
    return said


def _generate_reply(backend: Backend, prompt: Sequence[int], deadline: float) -> list[int]:
    """Return a reply of at least one token: up to its end, MAX_JUDGED_TOKENS or the deadline.

    deadline: By time.perf_counter().
    """
    tokens, pending, position = list[int](), list(prompt), 0
    while len(tokens) < MAX_JUDGED_TOKENS and (not tokens or time.perf_counter() < deadline):
        logits = _evaluate_tokens(backend, position, pending, 1)
        position += len(pending)
        pending = [int(np.argmax(logits[0]))]
        tokens += pending
        if pending[0] in backend.vocab.eog:
            break
    backend.trim(0, 0)
    return tokens


def guesses(draft: Backend, prompt: Sequence[int], said: Sequence[int]) -> tuple[list[Guess], float]:
    """Return the draft model's guess of each reply token but the first, and its seconds for the prompt.

    said: The reply's tokens.
    """
    found: list[Guess] = []
    began = time.perf_counter()
    _evaluate_tokens(draft, 0, prompt, 1)
    read_s = time.perf_counter() - began
    for begin in range(0, len(said) - 1, draft.n_batch):
        rows = list(said[begin : min(begin + draft.n_batch, len(said) - 1)])
        logits = _evaluate_tokens(draft, len(prompt) + begin, rows, len(rows))
        for row, token in zip(logits, said[begin + 1 :], strict=False):
            best = int(np.argmax(row))
            found.append(Guess(best == token, float(1 / np.exp(row - row[best]).sum())))
    draft.trim(0, 0)
    return found, read_s


def guess_seconds(draft: Backend) -> float:
    """Return the seconds of a guess: a decode of one row after some tokens."""
    return median(list(_draft_paced(draft, WARM_UP + TIMED_GUESSES))[WARM_UP:])


def _draft_paced(draft: Backend, n: int) -> Iterator[float]:
    for _ in range(n):
        length = draft.length(0)
        if length + 1 >= min(draft.n_ctx, 256):
            draft.trim(0, length := 0)
        began = time.perf_counter()
        _evaluate_tokens(draft, length, [0], 1)
        yield time.perf_counter() - began
    draft.trim(0, 0)


@contextmanager
def drafting(options: LlamaOptions) -> Generator[Connection]:
    """Run a process that drafts without pause, like a drafter beside the target; yield a link for pace()."""
    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_draft_on, args=(options, there), daemon=True)
    process.start()
    there.close()
    try:
        here.recv()  # it has loaded its model
        time.sleep(SETTLE_S)
        yield here
    finally:
        process.kill()
        process.join()
        here.close()


def pace(drafter: Connection) -> float:
    """Return the seconds that the drafting process recently took for a guess; raise EOFError if it died."""
    drafter.send(None)
    return float(drafter.recv())


def _draft_on(options: LlamaOptions, lead: Connection) -> None:
    with closing(LlamaBackend(options)) as draft:
        lead.send(None)
        while True:
            seconds = median(_draft_paced(draft, TIMED_GUESSES))
            if lead.poll():
                lead.recv()
                lead.send(seconds)


def _evaluate_tokens(backend: Backend, position: int, tokens: Sequence[int], n_wanted: int) -> Logits:
    """Evaluate tokens at `position`; return the logits of the last n_wanted, which must fit one decode."""
    last = (len(tokens) - 1) // backend.n_batch * backend.n_batch
    for begin in range(0, last, backend.n_batch):
        _decode_tokens(backend, position + begin, tokens[begin : begin + backend.n_batch], 0)
    return _decode_tokens(backend, position + last, tokens[last:], n_wanted)


def _decode_tokens(backend: Backend, position: int, tokens: Sequence[int], n_wanted: int) -> Logits:
    batch = Batch()
    batch.extend(0, position, tokens, n_wanted)
    return backend.decode(batch)
