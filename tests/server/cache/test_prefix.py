"""The index over resident sequences: what a new prompt reuses, and what goes first."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from server.cache.prefix import HALF_LIFE, ONE_STEP, Evicted, PrefixCache, Reuse, worth_keeping
from tests.checks import check_prefixes

SYSTEM = list(range(1000))


def text(start: int, n: int) -> list[int]:
    """Return tokens that no text of another start shares."""
    return [start * 100_000 + i for i in range(1, n + 1)]


def turn(cache: PrefixCache, prompt: list[int], reply: list[int], salt: str = "") -> Reuse:
    """Take a request from its admission to its end."""
    reuse = cache.take(prompt, salt=salt)
    assert reuse is not None
    cache.release(reuse.seq, [*prompt, *reply])
    check_prefixes(cache)
    return reuse


# -- what is reused ----------------------------------------


def test_prefix_excludes_the_last_token():
    cache = PrefixCache(3)
    for tokens in ([1, 2, 3], [1, 2, 3, 4, 5], [9]):
        turn(cache, tokens, [])
    assert cache.take([1, 2, 3, 4, 5]) == Reuse(0, 4, 0)


def test_unrelated_prompt_takes_oldest_sequence():
    cache = PrefixCache(2)
    cache.release(0, [1, 2])
    assert cache.take([7, 8]) == Reuse(1, 0, 1)
    cache.release(1, [7, 8])
    assert cache.take([5, 5]) == Reuse(0, 0, 0, Evicted(0, [1, 2], ""))


def test_short_shared_beginning_is_copied():
    cache = PrefixCache(2)
    cache.release(0, [1] + [2] * 50)
    assert cache.take([1, 3, 3]) == Reuse(1, 1, 0)
    assert cache.n_cells == 51


def test_next_turn_ignores_dropped_thoughts():
    cache = PrefixCache(3)
    prompt, thinking = [*SYSTEM, *text(1, 200)], text(2, 600)
    assert turn(cache, prompt, thinking).seq == 0
    assert cache.take([*prompt, *text(3, 50)]) == Reuse(0, 1200, 0)


def test_sharing_prompts_replace_nobody():
    cache = PrefixCache(4)
    first = [[*SYSTEM, *text(user, 100)] for user in range(1, 5)]
    assert [turn(cache, prompt, text(9, 50)).seq for prompt in first] == [0, 1, 2, 3]
    second = [[*prompt, *text(9, 50), *text(8, 20)] for prompt in first]
    assert [turn(cache, prompt, []) for prompt in second] == [Reuse(seq, 1150, seq) for seq in range(4)]


def test_least_surplus_sequence_is_continued():
    cache = PrefixCache(3)
    cache.release(1, SYSTEM)
    cache.release(0, [*SYSTEM, *text(1, 300)])
    assert cache.take([*SYSTEM, *text(2, 10)]) == Reuse(1, 1000, 1)


def test_abandoned_prompt_is_continued():
    cache = PrefixCache(2)
    prompt = [*SYSTEM, *text(1, 1000)]
    assert cache.take(prompt) == Reuse(0, 0, 0)
    cache.release(0, prompt[:1500])
    assert cache.take(prompt) == Reuse(0, 1500, 0)


def test_busy_sequence_is_copied():
    cache = PrefixCache(2)
    prompt = [*SYSTEM, *text(1, 9)]
    assert cache.take(prompt) == Reuse(0, 0, 0)
    assert cache.take(prompt, {0: (prompt, 640)}) == Reuse(1, 640, 0)


def test_idle_sequence_beats_busy_one():
    cache = PrefixCache(3)
    cache.release(0, [1, 2, 3])
    assert cache.take([7]) == Reuse(1, 0, 1)
    assert cache.take([1, 2, 3, 4], {1: ([1, 2, 3, 9], 3)}) == Reuse(0, 3, 0)


def test_only_whole_sequences_without_partial_reuse():
    cache = PrefixCache(2, partial=False)
    cache.release(0, [1, 2, 3, 4])
    assert cache.take([1, 2, 3], {0: ([1, 2], 2)}) == Reuse(1, 0, 1)
    cache.release(1, [])
    assert cache.take([1, 2, 3, 4, 5]) == Reuse(0, 4, 0)


# -- who may reuse it ----------------------------------------


def test_another_salt_reuses_nothing_idle_or_busy():
    cache = PrefixCache(4)
    turn(cache, [1, 2, 3], [], "mine")
    assert cache.take([5, 6, 7, 8], salt="mine") == Reuse(1, 0, 1)
    busy = {1: ([5, 6, 7, 8], 4)}
    assert cache.take([1, 2, 3, 4], busy, salt="yours") == Reuse(2, 0, 2)
    assert cache.take([5, 6, 7, 8], busy, salt="mine") == Reuse(3, 3, 1)
    assert cache.idle() == [Evicted(0, [1, 2, 3], "mine")]
    assert cache.take([1, 2, 3, 4], salt="mine") == Reuse(0, 3, 0)


def test_refilled_sequence_takes_new_salt():
    cache = PrefixCache(1)
    cache.release(0, [1, 2, 3], "restored")
    assert cache.evict() == Evicted(0, [1, 2, 3], "restored")
    cache.release(0, [1, 2, 3], "restored")
    assert cache.take([1, 2, 3], salt="restored") == Reuse(0, 2, 0)


# -- what goes first ----------------------------------------


def test_all_busy_means_none():
    cache = PrefixCache(1)
    assert cache.take([1, 2]) is not None
    assert cache.take([1, 2]) is None
    assert cache.n_busy == 1
    with pytest.raises(ValueError, match="busy"):
        cache.erase(0)


def test_eviction_spares_busy_sequences():
    cache = PrefixCache(3)
    for seq, tokens in enumerate([[1, 1], [2, 2], [3, 3]]):
        cache.release(seq, tokens)
    assert cache.take([1, 1, 5]) == Reuse(0, 2, 0)
    assert cache.n_cells == 4
    assert cache.evict() == Evicted(1, [2, 2], "")
    assert cache.evict() == Evicted(2, [3, 3], "")
    assert cache.evict() is None
    assert cache.n_cells == 0


def test_worth_halves_with_others_uses():
    assert worth_keeping(ONE_STEP, 0) == 0 == worth_keeping(3, 100)
    assert worth_keeping(ONE_STEP + 100, 0) == 100
    assert worth_keeping(ONE_STEP + 100, HALF_LIFE) == 50
    assert worth_keeping(1000, 5) > worth_keeping(999, 5) > worth_keeping(999, 6)
    assert worth_keeping(100_000, HALF_LIFE * 20) < worth_keeping(
        200, 0
    )  # nothing stays for its length alone


def test_long_conversation_outlives_recent_short():
    cache = PrefixCache(2)
    turn(cache, text(1, 3000), [])
    turn(cache, text(2, 300), [])
    assert cache.take(text(3, 10)) == Reuse(1, 0, 1, Evicted(1, text(2, 300), ""))


def test_endless_conversation_counts_once():
    cache = PrefixCache(2)
    turn(cache, text(1, 400), [])
    for n in range(300, 300 + 100 * HALF_LIFE):
        assert turn(cache, text(2, n), []).seq == 1
    cache.release(1, text(2, 300))
    assert cache.evict() == Evicted(1, text(2, 300), "")


def test_successive_conversations_count_separately():
    cache = PrefixCache(2)
    turn(cache, text(1, ONE_STEP + 190), [])
    turn(cache, text(2, ONE_STEP + 100), [])
    for n in range(3, 3 + HALF_LIFE - 1):
        assert turn(cache, text(n, ONE_STEP + 100), []).seq == 1
    evicted = cache.evict()
    assert evicted is not None
    assert evicted.seq == 0  # its 190 tokens are half as much by now


@pytest.mark.parametrize("live_is_busy", [False, True])
def test_side_request_goes_first(live_is_busy: bool):
    cache = PrefixCache(4)
    for user in (1, 2):
        turn(cache, text(user, 400), [])
    live = [*SYSTEM, *text(3, 120)]
    turn(cache, live, [])
    busy = {2: (live, len(live))}
    if live_is_busy:
        assert cache.take([*live, 5]) == Reuse(2, 1120, 2)
    side = [[*SYSTEM, *text(n, 50)] for n in (4, 5, 6)]  # a title, follow-up questions, tags
    for prompt in side:
        reuse = cache.take(prompt, busy if live_is_busy else None)
        assert reuse is not None
        assert (reuse.seq, reuse.length) == (3, 1000)  # the spare place, then the one before's
        cache.release(3, prompt)
    assert cache.evict() == Evicted(3, side[-1], "")


def test_first_branch_is_cheap_to_lose():
    cache = PrefixCache(3)
    turn(cache, [*SYSTEM, *text(1, 90)], [])
    turn(cache, [*SYSTEM, *text(2, 100)], [])
    turn(cache, text(3, 500), [])
    assert [evicted.seq for _ in range(3) if (evicted := cache.evict())] == [0, 2, 1]


def test_nothing_is_shared_without_copies():
    cache = PrefixCache(3, partial=False)
    turn(cache, [*SYSTEM, *text(1, 90)], [])
    turn(cache, [*SYSTEM, *text(2, 100)], [])
    turn(cache, text(3, 500), [])
    assert [evicted.seq for _ in range(3) if (evicted := cache.evict())] == [2, 0, 1]


def test_cheapest_place_may_be_the_source():
    cache = PrefixCache(2)
    turn(cache, [*SYSTEM, *text(1, 100)], [])
    turn(cache, text(2, 500), [])
    assert cache.take([*SYSTEM, *text(3, 10)]) == Reuse(0, 1000, 0)


def test_large_loss_of_source_is_told():
    cache = PrefixCache(1)
    held = [*SYSTEM, *text(1, 2000)]
    turn(cache, held, [])
    reuse = cache.take([*SYSTEM, *text(2, 10)])
    assert reuse == Reuse(0, 1000, 0, evicted=None, lost=Evicted(0, held, ""))


def test_idle_lists_the_worthiest_first():
    cache = PrefixCache(4)
    for user, n in enumerate((100, 300, 200), start=1):
        turn(cache, text(user, n), [], salt=str(user))
    held = [(entry.seq, len(entry.tokens), entry.salt) for entry in cache.idle()]
    assert held == [(1, 300, "2"), (2, 200, "3"), (0, 100, "1")]
    assert cache.n_cells == 600


def test_erased_is_gone():
    cache = PrefixCache(1)
    cache.release(0, [1, 2, 3])
    cache.erase(0)
    check_prefixes(cache)
    assert cache.idle() == []
    assert cache.take([1, 2, 3, 4]) == Reuse(0, 0, 0)


# -- random interleavings ----------------------------------------

N_SEQS = 4
SALTS = st.sampled_from(["", "other"])
PARTS = st.lists(st.integers(0, 2), min_size=1, max_size=4)
SEQS = st.integers(0, N_SEQS - 1)


def written(parts: list[int]) -> list[int]:
    """Return many tokens, some of which are few."""
    return [part for part in parts for _ in range(3 + 50 * (part > 0))]


def common(a: list[int], b: list[int]) -> int:
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


class Interleavings(RuleBasedStateMachine):
    """The engine, and a KV cache whose cells know the salt they were evaluated for.

    used: the idle sequences with something in them, the latest used last. prompts: those of the busy ones.
    """

    partial = True

    def __init__(self) -> None:
        super().__init__()
        self.cache = PrefixCache(N_SEQS, partial=self.partial)
        self.cells: list[list[tuple[str, int]]] = [[] for _ in range(N_SEQS)]
        self.salts = [""] * N_SEQS
        self.used: list[int] = []
        self.prompts: dict[int, list[int]] = {}

    def held(self, seq: int) -> list[int]:
        return [token for _, token in self.cells[seq]]

    def usable(self, seq: int, tokens: list[int], salt: str) -> int:
        n = common(self.held(seq), tokens[:-1]) if self.salts[seq] == salt else 0
        if self.partial:
            return n
        return n if seq in self.used and n == len(self.cells[seq]) else 0

    @rule(parts=PARTS, salt=SALTS)
    def take(self, parts: list[int], salt: str) -> None:
        tokens = written(parts)
        reuse = self.cache.take(
            tokens, {seq: (self.held(seq), len(self.cells[seq])) for seq in self.prompts}, salt=salt
        )
        if reuse is None:
            assert len(self.prompts) == N_SEQS
            return
        seq = reuse.seq
        assert seq not in self.prompts
        assert reuse.length == max(self.usable(s, tokens, salt) for s in [*self.used, *self.prompts, seq])
        if reuse.source == seq and reuse.length:
            assert reuse.evicted is None
            assert (reuse.lost is not None) == (reuse.length * 2 < len(self.cells[seq]))
            self.is_held(reuse.lost)
        else:
            assert (reuse.evicted is not None) == (seq in self.used)
            self.is_held(reuse.evicted)
            self.cells[seq] = self.cells[reuse.source][: reuse.length]
        del self.cells[seq][reuse.length :]
        assert self.cells[seq] == [(salt, token) for token in tokens[: reuse.length]]
        self.salts[seq] = salt
        self.prompts[seq] = tokens
        self.used = [s for s in self.used if s != seq]

    def is_held(self, evicted: Evicted | None) -> None:
        if evicted is not None:
            assert evicted.seq in self.used
            assert evicted.tokens == self.held(evicted.seq)
            assert evicted.salt == self.salts[evicted.seq]

    @precondition(lambda self: self.prompts)
    @rule(data=st.data(), parts=PARTS)
    def evaluate(self, data: st.DataObject, parts: list[int]) -> None:
        seq = data.draw(st.sampled_from(sorted(self.prompts)))
        missing = self.prompts[seq][len(self.cells[seq]) :] or written(parts)
        self.cells[seq] += [(self.salts[seq], token) for token in missing]

    @precondition(lambda self: self.prompts)
    @rule(data=st.data(), n_lost=st.integers(0, 60))
    def release(self, data: st.DataObject, n_lost: int) -> None:
        seq = data.draw(st.sampled_from(sorted(self.prompts)))
        n = max(0, len(self.cells[seq]) - n_lost) if self.partial or n_lost > 50 else len(self.cells[seq])
        del self.cells[seq][n:], self.prompts[seq]
        tokens = self.held(seq)
        self.cache.release(seq, tokens)
        self.used += [seq] if tokens else []
        tokens.append(99)  # what becomes of the list is nobody's business

    @rule()
    def evict(self) -> None:
        evicted = self.cache.evict()
        if evicted is None:
            assert not self.used
            return
        self.is_held(evicted)
        own = {seq: self.own(seq) for seq in self.used}
        for seq in self.used[: self.used.index(evicted.seq)]:
            assert own[seq] > own[evicted.seq], "an older one that costs no more stays"
        self.forget(evicted.seq)

    def own(self, seq: int) -> int:
        tokens, salt = self.held(seq), self.salts[seq]
        others = [self.held(s) for s in self.used if s != seq and self.salts[s] == salt]
        others += [prompt for s, prompt in self.prompts.items() if self.salts[s] == salt]
        return len(tokens) - max((common(tokens, o) for o in others if self.partial), default=0)

    @rule(seq=SEQS)
    def erase(self, seq: int) -> None:
        if seq not in self.prompts:
            self.cache.erase(seq)
            self.forget(seq)

    def forget(self, seq: int) -> None:
        self.cells[seq] = []
        self.used = [s for s in self.used if s != seq]

    @invariant()
    def agrees(self) -> None:
        check_prefixes(self.cache)
        assert self.cache.n_busy == len(self.prompts)
        assert self.cache.n_cells == sum(len(self.cells[seq]) for seq in self.used)
        idle = {entry.seq: (entry.tokens, entry.salt) for entry in self.cache.idle()}
        assert idle == {seq: (self.held(seq), self.salts[seq]) for seq in self.used}


class WholeInterleavings(Interleavings):
    partial = False


TestInterleavings = Interleavings.TestCase
TestWholeInterleavings = WholeInterleavings.TestCase
TestInterleavings.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestWholeInterleavings.settings = TestInterleavings.settings
