"""A prediction block follows its model, whatever is done to a sequence: it guesses from what that holds."""

from __future__ import annotations

import random

import numpy as np
import pytest

from server.errors import BackendError
from server.llama.backend import Batch, Logits
from server.llama.with_block import MOST_WAITING, Path, WithBlock
from tests.fake_backend import FakeBackend, FakeModel
from tests.toy_block import ToyBlock

MODEL = FakeModel(seed=5)
N_SEQS, MAIN = 6, 3  # sequences, and those of them that are conversations; the others are shadows


class Lead:
    """Makes random calls on sequences as an engine does, and knows what each sequence holds."""

    def __init__(self, seed: int = 0) -> None:
        self.backend = FakeBackend(MODEL, n_seqs=N_SEQS, n_cells=3000, n_ctx=400)
        self.block = ToyBlock(self.backend, MODEL)
        self.model = WithBlock(self.backend, self.block)
        self.held: list[list[int]] = [[] for _ in range(N_SEQS)]
        self.random = random.Random(seed)

    def token(self) -> int:
        return self.random.randrange(97, 123)

    def decode(self, seq: int, tokens: list[int]) -> None:
        batch = Batch()
        batch.extend(seq, len(self.held[seq]), tokens, 1)
        self.model.decode(batch)
        self.held[seq] += tokens

    def trim(self, seq: int, length: int) -> None:
        self.model.trim(seq, length)
        del self.held[seq][length:]

    def copy(self, source: int, target: int, end: int) -> None:
        self.trim(target, 0)
        self.model.copy(source, target, 0, end)
        self.held[target] = self.held[source][:end]

    def save_and_load(self, source: int, target: int) -> None:
        data = self.model.save(source)
        self.trim(target, 0)
        self.model.load(target, data)
        self.held[target] = list(self.held[source])

    def expected(self, seq: int, tokens: list[int]) -> Logits:
        """Return the model's logits after these tokens behind the sequence."""
        alone = FakeBackend(MODEL, n_ctx=500, n_batch=500)
        batch = Batch()
        batch.extend(0, 0, [*self.held[seq], *tokens], 1)
        return alone.decode(batch)[0]

    def guess(self, seqs: list[int], n: int) -> None:
        """Guess n tokens ahead after a token of each sequence and check each guess against its text."""
        paths = [Path(seq, self.token(), None) for seq in seqs]
        said = {path.seq: [path.token] for path in paths}
        for depth in range(n):
            logits, hidden = self.model.guess(paths, depth)
            for path, row in zip(paths, logits, strict=True):
                assert np.array_equal(row, self.expected(path.seq, said[path.seq]))
            tokens = [int(row.argmax()) for row in logits]
            paths = [Path(p.seq, t, h) for p, t, h in zip(paths, tokens, hidden, strict=True)]
            for path in paths:
                said[path.seq].append(path.token)

    def verify_tree(self, seq: int) -> None:
        """Take a step with two leaves, of which the shadow's may win."""
        shadow, base = seq + MAIN, len(self.held[seq])
        held = self.backend.length(shadow)
        self.model.copy(seq, shadow, held, base)
        root, left, right, last = (self.token() for _ in range(4))
        batch = Batch()
        batch.append((seq, shadow), base, root, wanted=True)
        batch.append((seq,), base + 1, left, wanted=True)
        batch.append((shadow,), base + 1, right, wanted=True)
        batch.append((shadow,), base + 2, last, wanted=True)
        self.model.decode(batch)
        if self.random.random() < 0.5:
            self.model.trim(seq, base + 1)
            self.model.copy(shadow, seq, base + 1, base + 3)
            self.held[seq] += [root, right, last]
        else:
            self.held[seq] += [root, left]
        self.model.trim(shadow, base + 1)
        self.model.trim(seq, len(self.held[seq]))
        if self.random.random() < 0.3:
            self.model.trim(shadow, 0)

    def step(self) -> None:
        seq = self.random.randrange(MAIN)
        n_held = len(self.held[seq])
        if n_held > 250:
            self.trim(seq, 0)
            return
        match self.random.randrange(8):
            case 0:
                self.decode(seq, [self.token() for _ in range(self.random.randrange(1, 60))])
            case 1:
                if self.random.random() < 0.3:
                    self.model.read(seq)
                self.decode(seq, [self.token()])
            case 2 | 3 if n_held:
                ready = [other for other in range(MAIN) if self.held[other]]
                self.guess(self.random.sample(ready, self.random.randrange(1, len(ready) + 1)), 3)
            case 4 if n_held:
                self.verify_tree(seq)
            case 5 if n_held:
                self.free_shadow(seq)
                self.trim(seq, self.random.randrange(n_held))
                if self.random.random() < 0.5 and self.held[seq]:
                    self.model.save(seq)
                    self.guess([seq], 1)
                self.decode(seq, [self.token()])
            case 6 if n_held:
                other = (seq + 1) % MAIN
                self.free_shadow(other)
                self.copy(seq, other, self.random.randrange(1, n_held + 1))
                if self.random.random() < 0.5:
                    self.guess([other], 2)
                self.decode(other, [self.token()])
            case 7 if n_held:
                other = (seq + 1) % MAIN
                self.free_shadow(other)
                self.save_and_load(seq, other)
                if self.random.random() < 0.5:
                    self.guess([other], 2)
                self.decode(other, [self.token()])
            case _:
                pass

    def free_shadow(self, seq: int) -> None:
        self.model.trim(seq + MAIN, 0)


@pytest.mark.parametrize("seed", range(60))
def test_block_guesses_from_its_sequence(seed: int):
    lead = Lead(seed)
    for _ in range(60):
        lead.step()
    assert lead.block.n_decodes > 5
    assert not lead.model.failed


def test_block_row_survives_snapshots():
    lead = Lead()
    lead.decode(0, [lead.token() for _ in range(20)])
    for _ in range(30):
        lead.guess([0], 3)
        lead.decode(0, [lead.token()])
    lead.save_and_load(0, 1)
    lead.decode(1, [lead.token()])
    lead.guess([1], 2)
    assert lead.model.n_unknown == 0


def test_block_rows_ride_next_decode():
    lead = Lead()
    lead.decode(0, [lead.token() for _ in range(MOST_WAITING)])
    lead.decode(0, [lead.token()])
    assert lead.block.n_decodes == 0
    batch = Batch()
    batch.extend(0, len(lead.held[0]), [lead.token()], 1)
    finish = lead.model.start(batch)
    assert lead.block.n_decodes == 2  # 65 rows, at most 64 at once, while a GPU decodes
    finish()
    lead.held[0] += batch.tokens
    lead.decode(0, [lead.token()])
    assert lead.block.n_decodes == 2
    lead.guess([0], 1)
    assert lead.block.n_decodes == 3


def test_requested_rows_ride_next_decode():
    lead = Lead()
    lead.decode(0, [lead.token() for _ in range(20)])
    assert lead.model.n_late(0) == 20
    lead.model.read(0)
    assert lead.block.n_decodes == 0
    lead.decode(0, [lead.token()])
    assert (lead.block.n_decodes, lead.model.n_late(0)) == (1, 1)
    lead.guess([0], 2)


def test_replaced_token_is_reevaluated():
    lead = Lead()
    lead.decode(0, [100, 101])
    lead.model.guess([Path(0, 102, None)], 0)  # the reply ended there, and another text follows
    lead.decode(0, [110, 111])
    lead.guess([0], 2)


def test_copied_beginning_knows_its_length():
    lead = Lead()
    for n in (50, 50, 1):
        lead.decode(0, [lead.token() for _ in range(n)])
    lead.copy(0, 1, 19)
    lead.guess([1], 2)
    assert lead.model.n_unknown == 1


def test_shift_moves_block_with_model():
    lead = Lead()
    lead.decode(0, [lead.token() for _ in range(40)])
    lead.guess([0], 2)
    lead.model.shift(0, 8, 20)
    batch = Batch()
    batch.extend(0, 28, [97], 1)
    logits = lead.model.decode(batch)
    ahead = int(logits[0].argmax())
    guessed, _ = lead.model.guess([Path(0, ahead, None)], 0)
    batch = Batch()
    batch.extend(0, 29, [ahead], 1)
    assert np.array_equal(lead.model.decode(batch)[0], guessed[0])


def test_failing_block_is_not_asked_again():
    lead = Lead()
    lead.block.fails_after = 0
    lead.decode(0, [97, 98])
    with pytest.raises(BackendError):
        lead.model.guess([Path(0, 99, None)], 0)
    assert lead.model.failed
    lead.decode(0, [97] * 50)
    lead.decode(0, [97] * 50)
    lead.trim(0, 3)


def test_other_leads_state_is_refused():
    lead = Lead()
    lead.decode(0, [97] * 9)
    for data in (lead.backend.save(0), b"", lead.model.save(0)[:-3]):
        with pytest.raises(BackendError):
            lead.model.load(1, data)
        lead.trim(1, 0)
