"""Pictures in the engine: whole in one decode where they must be, cut from the cache, unseen by guesses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from server.engine.proposer import OpenedSession, Proposer
from server.engine.request import GenerationRequest, PictureSpan
from server.llama.backend import PICTURE_IDS, Batch, Logits
from server.sampling.params import SamplingParams
from tests.fake_backend import FakeBackend
from tests.support import PROMPT, Harness, OracleProposer, request

N = 40  # positions of a picture: more than n_chunk, the rows of a prompt beside replies
START = len(PROMPT)


def positions(which: int) -> list[int]:
    first = PICTURE_IDS + 1000 * which
    return list(range(first, first + N))


def ask(which: int, *, whole: bool = True, after: str = " what is it?", **more: object) -> GenerationRequest:
    spans = ((START, START + N),) if whole else ()
    asked = request([*PROMPT, *positions(which), *after.encode()], **more)  # pyright: ignore[reportArgumentType]
    return replace(asked, pictures=(PictureSpan(START, START + N, spans, object()),))


@dataclass(slots=True)
class Recording(FakeBackend):
    """Keeps the tokens of each batch."""

    batches: list[list[int]] = field(default_factory=list[list[int]])

    def decode(self, batch: Batch) -> Logits:
        self.batches.append(list(batch.tokens))
        return FakeBackend.decode(self, batch)


def parts_of(batches: Sequence[Sequence[int]], which: int) -> list[int]:
    """Return how many positions of a picture each batch has, without those that have none."""
    ids = set(positions(which))
    return [n for batch in batches if (n := sum(token in ids for token in batch))]


def test_rows_of_one_decode_stay_together():
    backend = Recording(sees=True)
    harness = Harness(backend)
    harness.submit(request(max_tokens=60))
    while not harness.outcomes[1].tokens:
        harness.engine.step()
    harness.run(ask(1), ask(2))
    assert parts_of(backend.batches, 1) == parts_of(backend.batches, 2) == [N]


def test_other_rows_are_evaluated_in_chunks():
    backend = Recording(sees=True)
    harness = Harness(backend)
    harness.submit(request(max_tokens=60))
    while not harness.outcomes[1].tokens:
        harness.engine.step()
    harness.run(ask(1, whole=False))
    assert len(parts_of(backend.batches, 1)) > 1


def test_replies_depend_on_no_neighbour():
    asks = [ask(1), ask(2, whole=False), request()]
    alone = [Harness(FakeBackend(sees=True)).run(one)[0].tokens for one in asks]
    assert [one.tokens for one in Harness(FakeBackend(sees=True)).run(*asks)] == alone
    assert alone[0] != alone[1]


def test_next_turns_find_pictures_in_the_cache():
    harness = Harness(FakeBackend(sees=True))
    first = ask(1)
    [reply] = harness.run(first)
    tokens = [*first.prompt, *reply.tokens]
    later = replace(request([*tokens, *b" and now?"]), pictures=first.pictures)
    [outcome] = harness.run(later)
    assert outcome.started.n_cached == len(tokens) - 1
    [other] = harness.run(ask(2))
    assert other.started.n_cached == START


@pytest.mark.parametrize("whole", [True, False])
def test_begun_reply_about_a_picture_goes_on(whole: bool):
    asked = ask(1, whole=whole)
    [reply] = Harness(FakeBackend(sees=True)).run(asked)
    for n in (1, 7, len(reply.tokens) - 1):
        [rest] = Harness(FakeBackend(sees=True)).run(replace(asked, begun=reply.tokens[:n]))
        assert rest.tokens == reply.tokens[n:]


def cached_of_other_picture(backend: FakeBackend) -> int:
    """Return the cached tokens of a prompt whose picture begins with the ids of a known one."""
    harness = Harness(backend)
    harness.run(ask(1))
    known = ask(1)
    forged = [*known.prompt[: START + 10], *positions(2)[10:], *known.prompt[START + N :]]
    [outcome] = harness.run(replace(known, prompt=forged))
    assert outcome.tokens == Harness(FakeBackend(sees=True)).run(replace(known, prompt=forged))[0].tokens
    return outcome.started.n_cached


def test_no_part_of_a_picture_is_reused():
    assert cached_of_other_picture(FakeBackend(sees=True)) == START
    assert cached_of_other_picture(FakeBackend(sees=True, can_trim=False)) == START


def test_guesses_beside_pictures_change_nothing():
    asks = [ask(1), ask(2), request()]
    alone = [Harness(FakeBackend(sees=True)).run(one)[0].tokens for one in asks]
    blanked = [[token if token < PICTURE_IDS else ord(" ") for token in one.prompt] for one in asks]
    texts = [[*prompt, *reply] for prompt, reply in zip(blanked, alone, strict=True)]
    for wrong_every in (0, 1, 2):
        oracle = OracleProposer(texts, wrong_every=wrong_every)
        assert [one.tokens for one in Harness(FakeBackend(sees=True), proposer=oracle).run(*asks)] == alone
        assert (oracle.accepted > 0) == (wrong_every != 1)


def test_beams_begin_behind_pictures():
    asked = replace(ask(1), n_beams=2)
    [alone] = Harness(FakeBackend(sees=True)).run(asked)
    [beside, _] = Harness(FakeBackend(sees=True)).run(asked, ask(2))
    assert beside.tokens == alone.tokens != ()


class Listening(Proposer):
    """Keeps the tokens that it is shown."""

    def __init__(self) -> None:
        self.shown: Sequence[int] = ()

    def open(self, session: OpenedSession) -> None:
        self.shown = session.tokens


def test_who_guesses_sees_blanks():
    listening = Listening()
    [reply] = Harness(FakeBackend(sees=True), proposer=listening).run(ask(1))
    shown = [*PROMPT, *b" " * N, *b" what is it?", *reply.tokens]
    assert list(listening.shown) == listening.shown[:] == shown
    assert listening.shown[START] == ord(" ")
    assert listening.shown[-1] == reply.tokens[-1]


def test_pictures_count_for_no_penalty():
    sampling = SamplingParams(
        1.0,
        repeat_penalty=1.5,
        frequency_penalty=0.5,
        dry_multiplier=1.0,
        dry_base=2.0,
        repeat_last_n=-1,
        seed=3,
    )
    twice = [*PROMPT, *positions(1), *positions(1), *b" what is it?"]
    spans = tuple(PictureSpan(START + i * N, START + (i + 1) * N, (), object()) for i in range(2))
    [outcome] = Harness(FakeBackend(sees=True)).run(
        replace(request(twice), sampling=sampling, pictures=spans)
    )
    assert len(outcome.tokens) > 1
