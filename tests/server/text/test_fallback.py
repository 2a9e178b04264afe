"""What stands in for a chat template: a form whose marks the vocabulary has, and whose end ends replies."""

from __future__ import annotations

import pytest

from server.formats.reading import MessageReader
from server.text.fallback import FALLBACKS, IN_WORDS, Fallback, fallback_for
from server.text.message import folded
from server.text.reply_format import ReplyFormat
from server.text.template import ChatTemplate

SAID = [
    {"role": "system", "content": "M1"},
    {"role": "user", "content": "M2"},
    {"role": "assistant", "content": "M3"},
    {"role": "user", "content": "M4"},
]


@pytest.mark.parametrize("fallback", FALLBACKS, ids=lambda one: one.name)
def test_marks_decide(fallback: Fallback):
    assert fallback_for({mark: i for i, mark in enumerate(("<s>", *fallback.markers))}) is fallback
    assert fallback_for({fallback.markers[0]: 1}) is IN_WORDS


@pytest.mark.parametrize("fallback", [*FALLBACKS, IN_WORDS], ids=lambda one: one.name)
def test_every_message_is_in_the_prompt(fallback: Fallback):
    prompt = ChatTemplate(fallback, bos="<s>").render(SAID)
    places = [prompt.find(f"M{i}") for i in (1, 2, 3, 4)]
    assert -1 not in places
    assert places == sorted(places)
    end = fallback.markers[-1] if fallback.markers else "\n\n"
    assert prompt.count(end) >= 3


def test_words_end_replies_without_a_mark():
    style = ChatTemplate(IN_WORDS).style
    reader = MessageReader(ReplyFormat(stops=style.stops), stops=["x"])
    assert folded(reader.feed(" Yes.\n\nUser: and?")).content == " Yes."
    assert reader.stopped
    assert ChatTemplate(FALLBACKS[0]).style.stops == ()
