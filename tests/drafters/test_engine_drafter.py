"""A drafter that asks another engine: it never waits, and nothing that an engine says does harm."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from drafters.engine_client import EngineClient, HttpEngine
from drafters.engine_dialects import EngineError, LlamaServer, LlamaServerText, Ollama, OpenAI
from drafters.engine_drafter import LATEST_REPLIES, PATHS, EngineDrafter, dialect_of, slots_of
from server.speculation.wire.messages import Close
from tests.drafters.scene import PROMPT, Scene, commit, open_
from tests.drafters.toy_engine import Answer, ToyEngine, always, completion, tokenize
from tests.fake_backend import IM_END, FakeVocabulary

VOCAB = FakeVocabulary()
READY_S = 30.0
TEXT = b" and so it goes on and on, as far as anybody asks."


def following(body: dict[str, Any]) -> list[bytes]:
    """Return TEXT from where the prompt has reached."""
    n = len(body["prompt"]) - len(PROMPT)
    return completion(TEXT[n : n + body["n_predict"]])


def hung_up(body: dict[str, Any]) -> None:
    """Break the connection."""


@contextmanager
def scene_of(n_at_once: int = 1, **answers: Answer) -> Generator[tuple[Scene, ToyEngine]]:
    """Yield a lead, a drafter and an engine in llama-server's dialect."""
    engine = ToyEngine(tokenize=tokenize, **answers)
    client = EngineClient(engine.url)
    try:
        drafter = EngineDrafter(HttpEngine(client, dialect_of(client, VOCAB), n_at_once), VOCAB)
        yield Scene(drafter=drafter), engine
    finally:
        client.close()
        engine.close()


def turn_until(scene: Scene, reached: Callable[[], bool]) -> None:
    """Let the worker take turns as the engine answers, until `reached` is true."""
    scene.settle()
    while not reached():
        scene.worker.turn()
        scene.settle()


def test_engine_text_is_drafted():
    with scene_of(completion=following) as (scene, engine):
        scene.send(open_(max_ahead=6))
        turn_until(scene, lambda: len(scene.drafted()) == 6)
        assert bytes(scene.drafted()) == TEXT[:6]
        assert engine.requests[0]["prompt"] == list(PROMPT)
        assert engine.requests[0]["n_predict"] == 6 * PATHS


def test_right_guesses_need_no_other_request():
    with scene_of(completion=following) as (scene, engine):
        scene.send(open_(max_ahead=6))
        turn_until(scene, lambda: len(scene.drafted()) == 6)
        for n in range(1, 12):
            scene.send(commit(*TEXT[:n]))
            turn_until(scene, lambda n=n: len(scene.drafted()) == n + 6)  # the lead is never ahead
        assert bytes(scene.drafted()) == TEXT[:17]
        assert len(engine.requests) == 1


def test_a_used_up_reply_is_continued():
    with scene_of(completion=following) as (scene, engine):
        scene.send(open_(max_ahead=2))
        for n in range(1, 12):
            turn_until(scene, lambda n=n: len(scene.drafted()) >= n + 1)
            scene.send(commit(*TEXT[:n]))
        turn_until(scene, lambda: len(scene.drafted()) == 13)
        assert bytes(scene.drafted()) == TEXT[:13]
        assert [len(request["prompt"]) - len(PROMPT) for request in engine.requests] == [0, 8]


def test_a_wrong_guess_asks_again():
    with scene_of(completion=always(*completion(b"xyz" * 8))) as (scene, engine):
        scene.send(open_(max_ahead=3))
        turn_until(scene, lambda: len(scene.drafted()) == 3)
        scene.send(commit(*b"other"))
        turn_until(scene, lambda: len(scene.drafted()) == 6)
        assert engine.requests[-1]["prompt"] == [*PROMPT, *b"other"]


@pytest.mark.parametrize(("first_s", "goes_on"), [(100.0, True), (0.0, False)])
def test_late_reply_goes_on_while_quicker(first_s: float, goes_on: bool):
    """A reply that begins behind the lead goes on if it overtakes the lead before a new one begins."""
    is_ahead = threading.Event()

    def answer(body: dict[str, Any]) -> Iterator[bytes]:
        lines = following(body)
        yield lines[0]
        is_ahead.wait(READY_S)
        yield from lines[1:]

    with scene_of(completion=answer) as (scene, engine):
        assert isinstance(scene.drafter, EngineDrafter)
        scene.drafter.td.observe(1.0)
        for _ in range(LATEST_REPLIES):
            scene.drafter._first_s.observe(first_s)  # pyright: ignore[reportPrivateUsage]
        scene.send(open_(max_ahead=6))
        turn_until(scene, lambda: len(scene.drafted()) == 1)
        scene.send(commit(*TEXT[:3]))
        is_ahead.set()
        turn_until(scene, lambda: len(scene.drafted()) == 7)
        assert bytes(scene.drafted()) == TEXT[:1] + TEXT[3:9]
        assert (len(engine.requests) == 1) is goes_on


def test_second_choices_are_branches():
    with scene_of(completion=always(*completion(b"xyz" * 8, seconds=b"ab\xff" * 8))) as (scene, engine):
        scene.send(open_(max_ahead=3))
        turn_until(scene, lambda: has_guessed(scene, b"ab\xff"))
        assert has_guessed(scene, b"xyz")
        assert len(engine.requests) == 1, "this engine answers one request at a time"


def forked(body: dict[str, Any]) -> list[bytes]:
    """Return a text of which the first choice is wrong, and where the second leads."""
    text = bytes(body["prompt"][len(PROMPT) :])
    return completion(b"bcdefgh", "eos") if text == b"a" else completion(b"xyz" * 8, seconds=b"a")


def has_guessed(scene: Scene, text: bytes, first: int = 0) -> bool:
    """Return True if the lead was told this text from the first-th token after the prompt on."""
    told = {
        (one.base + i - len(PROMPT), token)
        for one in scene.lead.drafts()
        for i, token in enumerate(one.tokens)
    }
    return told >= set(enumerate(text, start=first))


def test_taken_second_choice_has_guesses_already():
    with scene_of(2, completion=forked) as (scene, engine):
        scene.send(open_(max_ahead=5))
        turn_until(scene, lambda: has_guessed(scene, b"abcde"))
        assert sorted(len(request["prompt"]) - len(PROMPT) for request in engine.requests) == [0, 1]
        scene.send(commit(*b"ab"))
        turn_until(scene, lambda: has_guessed(scene, b"fg", 5))
        assert len(engine.requests) == 2, "the reply beside the path continues it"


def test_request_beside_ends_with_its_branch():
    with scene_of(2, completion=forked) as (scene, engine):
        scene.send(open_(max_ahead=5))
        turn_until(scene, lambda: has_guessed(scene, b"abcde"))
        scene.send(commit(*b"x"))
        turn_until(scene, lambda: len(engine.requests) == 2)
        scene.send(commit(*b"xother"))
        turn_until(scene, lambda: len(engine.requests) > 2)
        assert bytes(engine.requests[2]["prompt"][len(PROMPT) :]) == b"xother"


def test_slots_are_the_engines():
    for slots, n in ((b'{"total_slots": 4}', 4), (b"{}", 1), (b'{"total_slots": "many"}', 1)):
        engine = ToyEngine(tokenize=tokenize, props=always(slots))
        client = EngineClient(engine.url)
        try:
            assert slots_of(client) == n
        finally:
            client.close()
            engine.close()


def test_an_end_of_text_is_a_guess():
    with scene_of(completion=always(*completion(b".", "eos"))) as (scene, engine):
        scene.send(open_())
        turn_until(scene, lambda: len(scene.drafted()) == 2)
        assert scene.drafted() == [ord("."), IM_END]
        assert len(engine.requests) == 1


def test_salts_go_to_the_engine():
    with scene_of(completion=following) as (scene, engine):
        scene.send(open_(salt="anne"))
        turn_until(scene, lambda: bool(scene.drafted()))
        assert engine.requests[0]["cache_salt"] == "anne"


@pytest.mark.parametrize(
    "answer",
    [
        hung_up,
        always(b"data: <html>\n\n"),
        always(*completion(b"")),
        always(*completion(b"ab")[:2]),
        always(b"x" * (1 << 17)),
        always(b'data: {"tokens":["x"],"completion_probabilities":[7]}\n\n'),
    ],
    ids=["hangs-up", "says-html", "says-nothing", "breaks-off", "endless-line", "says-odd-types"],
)
def test_a_failing_engine_is_left_alone(answer: Answer, caplog: pytest.LogCaptureFixture):
    with scene_of(completion=answer) as (scene, engine):
        scene.send(open_())
        turn_until(scene, lambda: "fails" in caplog.text)
        assert len(engine.requests) == 1, "not asked again at once"
        engine.answers["/completion"] = following
        drafted = len(scene.drafted())
        turn_until(scene, lambda: len(scene.drafted()) > drafted)
        assert caplog.text.count("fails") == 1


def test_ids_outside_the_vocabulary_are_no_guesses():
    lies = [b'data: {"content":"","tokens":[99999],"stop":false}\n\n', *completion(b"b", "eos")]
    with scene_of(completion=always(*completion(b"a")[:1], *lies)) as (scene, _):
        scene.send(open_())
        turn_until(scene, lambda: bool(scene.drafted()))
        assert scene.drafted() == [ord("a")]


def test_a_closed_session_is_cancelled():
    with scene_of(completion=following) as (scene, _):
        scene.send(open_())
        turn_until(scene, lambda: bool(scene.drafted()))
        scene.send(Close("lead", 1, False))
        assert scene.worker.n_sessions == 0
        assert not scene.drafter._asked  # pyright: ignore


def test_text_is_translated():
    lines = [b'{"response":"%c","done":false}\n' % byte for byte in TEXT[:8]]
    lines.append(b'{"response":"","done":true,"done_reason":"length"}\n')
    engine = ToyEngine(api__generate=always(*lines), api__version=always(b'{"version":"0.13.0"}'))
    client = EngineClient(engine.url, model="toy")
    try:
        scene = Scene(drafter=EngineDrafter(HttpEngine(client, dialect_of(client, VOCAB)), VOCAB))
        scene.send(open_(max_ahead=5))
        turn_until(scene, lambda: len(scene.drafted()) == 5)
        assert bytes(scene.drafted()) == TEXT[:5]
        assert engine.requests[-1]["prompt"] == bytes(PROMPT).decode()
        assert engine.requests[-1]["model"] == "toy"
    finally:
        client.close()
        engine.close()


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        ({"tokenize": tokenize}, LlamaServer),
        ({"tokenize": always(b'{"tokens":[1,2]}')}, LlamaServerText),
        ({"api__version": always(b'{"version":"0.13.0"}')}, Ollama),
        ({"tokenize": always(b'{"error":"Unexpected endpoint"}')}, OpenAI),  # LM Studio, with status 200
        ({}, OpenAI),
    ],
)
def test_engines_are_told_apart(answers: dict[str, Answer], kind: type[object]):
    engine = ToyEngine(**answers)
    client = EngineClient(engine.url)
    try:
        assert type(dialect_of(client, VOCAB)) is kind
    finally:
        client.close()
        engine.close()


def test_no_engine_is_an_error():
    engine = ToyEngine()
    engine.close()
    client = EngineClient(engine.url)
    try:
        with pytest.raises(EngineError, match="no answer"):
            dialect_of(client, VOCAB)
    finally:
        client.close()
