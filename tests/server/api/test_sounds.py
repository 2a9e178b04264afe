"""Sounds over HTTP: heard where the projector takes them, and refused in one precise line elsewhere."""

from __future__ import annotations

import time
from collections.abc import Generator
from random import Random
from typing import Any

import httpx
import pytest

from tests.http_lead import Lead
from tests.server.api.test_hostile_pictures import MOST_S, cut, enlarge, flip, flip_head, repeat
from tests.server.api.test_pictures import RED, answered, asking, post, refusal, said, seeing, seen, text
from tests.server.pictures.drawn import Painter
from tests.server.pictures.recorded import heard, recorded, silent_mp3

N = 22  # positions of a sound
SEEDS = 80  # of each format
ONE, OTHER = (heard(recorded(seed=seed)) for seed in (1, 2))


def damaged_sound(form: str, seed: int) -> bytes:
    """Return a sound with one to three changes, the same ones in each run."""
    random = Random(f"{form} {seed}")
    data = bytearray(recorded(seconds=0.3) if form == "wav" else silent_mp3())
    for _ in range(random.randrange(1, 4)):
        if data:
            random.choice((cut, flip, flip_head, enlarge, repeat))(data, random)
    return bytes(data)


@pytest.fixture(scope="module")
def lead() -> Generator[Lead]:
    with seeing(Painter(hears=True)) as one:
        yield one


@pytest.fixture(scope="module")
def deaf() -> Generator[Lead]:
    with seeing() as one:
        yield one


def test_sounds_are_part_of_prompts(lead: Lead):
    with_one = answered(lead, asking(text("What is "), ONE, text(" here?")))
    without = answered(lead, asking(text("What is "), text(" here?")))
    assert with_one["usage"]["prompt_tokens"] == without["usage"]["prompt_tokens"] + N + len("\n")
    other = answered(lead, asking(text("What is "), OTHER, text(" here?")))
    assert said(with_one) != said(other)
    again = answered(lead, asking(text("What is "), ONE, text(" here?")))
    assert said(again) == said(with_one)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == with_one["usage"]["prompt_tokens"] - 1
    both = answered(lead, asking(seen(RED), ONE, text("?")))
    assert both["usage"]["prompt_tokens"] > 2 * N


def test_known_sounds_are_not_encoded_again():
    painter = Painter(hears=True)
    with seeing(painter) as lead:
        for _ in range(3):
            answered(lead, asking(ONE, text("?")))
    assert painter.n_calls == 1


def test_mp3s_are_read(lead: Lead):
    assert answered(lead, asking(heard(silent_mp3(), "mp3"), text("?")))["usage"]["prompt_tokens"] > N


@pytest.mark.parametrize(
    ("part", "param", "why"),
    [
        ({"type": "input_audio"}, ".format", "a sound's format is wav or mp3"),
        ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "ogg"}}, ".format", "wav or mp3"),
        (heard(b"RIFF"), ".data", "not a whole wav"),
        (heard(recorded(), "mp3"), ".data", "not a whole mp3 within the limits: it has no frames"),
        (heard(recorded(seconds=0.01)), ".data", "send 0.1 to 600 s"),
    ],
)
def test_other_sounds_are_refused(lead: Lead, part: Any, param: str, why: str):
    error = refusal(lead, asking(text("a"), part, text("b")))
    assert error["param"] == f"messages.0.content.1.input_audio{param}"
    assert why in error["message"]


def test_models_without_ears_refuse_sounds(deaf: Lead, lead: Lead):
    error = refusal(deaf, asking(text("a"), ONE, text("b")))
    assert error["param"] == "messages.0.content.1.type"
    assert "`input_audio` is not supported: this model reads text and pictures only" in error["message"]
    earlier = [*asking(ONE, text("?")), {"role": "assistant", "content": "yes"}, *asking(text("b"))]
    unheard, known = (answered(one, earlier)["usage"]["prompt_tokens"] for one in (deaf, lead))
    assert unheard != known
    with seeing(Painter(sees=False, hears=True)) as blind:
        error = refusal(blind, asking(seen(RED), text("b")))
        assert "this model reads text and sounds only" in error["message"]
        assert answered(blind, asking(ONE, text("b")))


def test_modalities_are_told(lead: Lead, deaf: Lead):
    for one, kinds, hears in ((lead, ["text", "image", "audio"], True), (deaf, ["text", "image"], False)):
        [card] = httpx.get(one.url + "/v1/models").json()["data"]
        assert card["architecture"]["input_modalities"] == kinds
        told = httpx.get(one.url + "/props").json()["modalities"]
        assert told == {"vision": True, "audio": hears, "video": False}


def test_responses_hear_sounds(lead: Lead, deaf: Lead):
    def asked(one: Lead) -> httpx.Response:
        item = {"role": "user", "content": [ONE, {"type": "input_text", "text": "What is it?"}]}
        body = {"input": [item], "max_output_tokens": 8, "temperature": 0}
        return httpx.post(one.url + "/v1/responses", json=body, timeout=20)

    response = asked(lead)
    assert response.status_code == 200, response.text
    assert response.json()["usage"]["input_tokens"] > N
    error = asked(deaf).json()["error"]
    assert error["param"] == "input.0.content.0.type"
    assert "input_audio: this model reads text and pictures only" in error["message"]


@pytest.mark.parametrize("form", ["wav", "mp3"])
def test_no_sound_ends_a_lead(lead: Lead, form: str):
    statuses = set[int]()
    for seed in range(SEEDS):
        began = time.perf_counter()
        part = heard(damaged_sound(form, seed), form)
        response = post(lead, asking(text("a"), part, text("b")), max_tokens=1)
        assert time.perf_counter() - began < MOST_S
        statuses.add(response.status_code)
        if response.status_code == 400:
            error = response.json()["error"]
            assert error["param"] == "messages.0.content.1.input_audio.data"
            assert len(error["message"]) < 400
    assert statuses == {200, 400}
    assert answered(lead, asking(ONE, text("b")), max_tokens=1)
