"""Grammars over a real vocabulary, where a token is several characters and a text has many spellings."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest

from server.grammar.gbnf import parse
from server.grammar.grammar_constraint import compile_gbnf, compile_json_schema
from server.llama.backend import Batch
from server.llama.llamacpp import LlamaBackend, LlamaOptions
from server.sampling.constraint import Constraint
from server.sampling.draw import draw
from server.sampling.params import SamplingParams
from server.settings import BUNDLED_MODEL
from tests.server.grammar.grammars import USUAL
from tests.server.grammar.reference import matches

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def backend() -> Iterator[LlamaBackend]:
    with closing(LlamaBackend(LlamaOptions(BUNDLED_MODEL, n_cells=512, n_seqs=1))) as one:
        yield one


def generate(backend: LlamaBackend, constraint: Constraint, seed: int, n_most: int) -> tuple[str, bool]:
    """Return a text at temperature 1 under the constraint, and whether it ended.

    The end is made likely, so that texts end whatever the last bits of the logits are.
    """
    prompt = backend.vocab.tokenize("Here is an example:\n", special=False)
    params = SamplingParams(1.0, 0, 1.0, 0.0, seed)
    tokens, text = list(prompt), b""
    backend.trim(0, 0)
    new = prompt
    while len(tokens) < len(prompt) + n_most:
        batch = Batch()
        batch.extend(0, len(tokens) - len(new), new, 1)
        row = np.where(constraint.mask(), backend.decode(batch)[0], np.float32(-np.inf))
        row[list(backend.vocab.eog)] += 8
        token = draw(row, params, len(tokens))
        assert constraint.allows(token)
        if token in backend.vocab.eog:
            return text.decode(), True
        constraint.accept(token)
        text += backend.vocab.piece(token)
        tokens.append(token)
        new = [token]
    return text.decode(errors="ignore"), False


SENTENCE = 'root ::= [A-Z] [a-z]{0,8} (" " word){2,5} [.!?]\nword ::= [a-z]{1,9} | "«" word "»"'


@pytest.mark.parametrize(
    "grammar", [USUAL["json"], USUAL["list"], SENTENCE], ids=["json", "list", "sentence"]
)
def test_model_output_is_in_language(backend: LlamaBackend, grammar: str):
    rules = parse(grammar, backend.vocab)
    start = compile_gbnf(backend.vocab, grammar)
    said = [generate(backend, start(), seed, 60) for seed in range(16)]
    ended = [text for text, finished in said if finished]
    assert ended, said
    for text in ended:
        assert len(text) > 80 or matches(rules, text), text


def test_model_output_fits_the_schema(backend: LlamaBackend):
    schema = {
        "type": "object",
        "properties": {"name": {"enum": ["Ada", "Alan"]}, "age": {"type": "integer", "maximum": 99}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    start = compile_json_schema(backend.vocab, schema)
    said = [generate(backend, start(), seed, 60) for seed in range(6)]
    ended = [json.loads(text) for text, finished in said if finished]
    assert ended, said
    for value in ended:
        assert value["name"] in ("Ada", "Alan")
        assert value["age"] <= 99


@pytest.mark.parametrize("name", USUAL)
def test_every_way_of_asking_gives_one_answer(backend: LlamaBackend, name: str):
    """The mask, a single token and several in a row agree; looking for forced tokens changes none."""
    vocabulary = backend.vocab
    start = compile_gbnf(vocabulary, USUAL[name])
    rng = random.Random(4)
    asked, masked = start(), start()
    for _ in range(12):
        forced = asked.forced()
        one_by_one = np.array([asked.n_allowed((token,)) == 1 for token in range(vocabulary.size)])
        np.testing.assert_array_equal(masked.mask(), one_by_one)
        assert asked.n_allowed(forced) == len(forced)
        allowed = np.flatnonzero(masked.mask() & ~np.isin(np.arange(vocabulary.size), list(vocabulary.eog)))
        if not len(allowed):
            break
        token = int(rng.choice(allowed))
        if forced and forced[0] not in vocabulary.eog:  # some token spells the beginning of what must come
            assert vocabulary.piece(forced[0])[:1] == vocabulary.piece(token)[:1]
        asked.accept(token)
        masked.accept(token)


def test_forced_text_tokenises_normally(backend: LlamaBackend):
    constraint = compile_gbnf(backend.vocab, 'root ::= "{\\"name\\": \\"" [a-z]+ "\\"}"')()
    forced = constraint.forced()
    assert len(forced) >= 3
    assert b'{"name": "'.startswith(b"".join(map(backend.vocab.piece, forced)))
    assert list(forced) == backend.vocab.tokenize('{"name": "a', special=False)[: len(forced)]
