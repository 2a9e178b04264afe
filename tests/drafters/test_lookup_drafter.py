"""The drafter without a model: it repeats what was said before, in this session or in another one."""

from __future__ import annotations

from drafters.lookup_drafter import PORTION, LookupDrafter
from server.speculation.wire.messages import Close
from tests.drafters.scene import Scene, commit, open_

SAID = tuple(b"one two three four five six seven eight nine ten. ")


def scene_of(drafter: LookupDrafter | None = None) -> Scene:
    return Scene(drafter=drafter or LookupDrafter())


def test_earlier_text_is_drafted():
    scene = scene_of()
    scene.send(open_((*SAID, *b"one two thr"), max_ahead=8))
    assert bytes(scene.drafted()) == b"ee four "


def test_commits_move_it_on():
    scene = scene_of()
    prompt = (*SAID, *b"one two thr")
    scene.send(open_(prompt, max_ahead=4))
    scene.send(commit(*b"ee", prompt=prompt))
    assert bytes(scene.drafted()) == b"ee four"[:6]


def test_where_it_was_wrong_it_looks_again():
    scene = scene_of()
    prompt = (*SAID, *b"one two thr")
    scene.send(open_(prompt, max_ahead=4))
    scene.send(commit(*b"eshold. five s", prompt=prompt))
    assert bytes(scene.drafted()[4:]) == b"ix s"


def test_lookup_rests_without_earlier_text():
    scene = scene_of()
    scene.send(open_((1, 2, 3, 4)))
    assert scene.drafted() == []
    assert scene.worker.n_sessions == 1


def test_ended_session_feeds_lookups():
    scene = scene_of()
    scene.send(open_((250, 251)))
    scene.send(commit(*SAID, prompt=(250, 251)))
    scene.send(Close("lead", 1, False))
    scene.send(open_((252, *b"and two thr"), session=2, max_ahead=5))
    assert bytes(scene.drafted(2)) == b"ee fo"


def test_other_salts_are_not_drafted():
    scene = scene_of()
    scene.send(open_((250, 251), salt="anne"))
    scene.send(commit(*SAID, prompt=(250, 251)))
    scene.send(Close("lead", 1, False))
    scene.send(open_((252, *b"and two thr"), session=2, max_ahead=5, salt="bob"))
    assert scene.drafted(2) == []
    scene.send(open_((252, *b"and two thr"), session=3, max_ahead=5, salt="anne"))
    assert bytes(scene.drafted(3)) == b"ee fo"


def test_a_prompt_is_not_what_somebody_said():
    scene = scene_of()
    scene.send(open_(SAID), Close("lead", 1, False))
    scene.send(open_((252, *b"and two thr"), session=2, max_ahead=5))
    assert scene.drafted(2) == []


def test_long_prompt_comes_in_portions():
    prompt = (*SAID, *(i % 100 + 300 for i in range(3 * PORTION)), *b"one two thr")
    scene = scene_of()
    scene.send(open_(prompt, session=1, max_ahead=8))
    assert scene.drafted() == [], "others have their turn between"
    for _ in range(4):
        scene.settle()
    assert bytes(scene.drafted()) == b"ee four "


def test_different_open_begins_anew():
    scene = scene_of()
    scene.send(open_((*SAID, *b"one two thr"), max_ahead=4))
    other = tuple(b"red green blue. red gre")
    scene.send(open_(other, max_ahead=4))
    assert bytes(scene.drafted()[4:]) == b"en b"


def test_repeated_open_is_answered_again():
    scene = scene_of()
    opening = open_((*SAID, *b"one two thr"), max_ahead=4)
    scene.send(opening)
    scene.send(opening)
    assert bytes(scene.drafted()) == b"ee f" * 2
