"""Compile grammars and JSON schemas to constraints, with llguidance."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance import TokenizerWrapper as Wrapper

from server.errors import InvalidRequestError
from server.grammar.gbnf import parse
from server.grammar.json_schema import MAX_MULTIPLE, blame
from server.grammar.lark import as_written, schema_to_lark, to_lark
from server.grammar.lexing import lex
from server.grammar.schema_form import Schema, form_error
from server.grammar.syntax import Budget
from server.llama.backend import Vocabulary

MAX_REASON = 300  # characters of llguidance's message that clients get
KEPT_VOCABULARIES = 4
_NO_WAY_ON = "NoExtension"  # error that is ignored: the vocabulary has no token for what must come next
_BETTER = (
    ("Unimplemented keys", "this keyword is not supported"),
    (
        "oneOf constraints are not supported",
        "the options of oneOf must exclude each other in a way that shows, by their types or by different "
        "constants in a required property; or use anyOf",
    ),
    ("Unable to determine if regex is empty", "too many patterns have to hold at once"),
    (
        "Parser Error: Current row has",
        "more than 1000 ways to go on at one place: fewer optional properties or alternatives will do",
    ),
)
"""Pairs of the beginning of an llguidance message and the message that clients get instead."""
_PREAMBLE = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: )?")
LIMITS = LLParserLimits(
    max_items_in_row=1_000,
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_lexer_states=50_000,
    max_grammar_size=200_000,
    precompute_large_lexemes=False,
    verbose_errors=False,
)
"""Limits of one grammar and of one step.

With a vocabulary of 150,000 tokens, a step usually takes 50 µs. It takes at most 10 ms if lexemes are single
characters, and at most 0.2 s if the grammar is made to be ambiguous.
"""


REFILL_TOKENS = 256
"""Tokens after which a mask is computed if none was needed: only masks renew the lexer's fuel (see LIMITS).

So each of 256 tokens may take 780 units of fuel. A token of 10 characters takes 120 units in a string with
maxLength. With twice the number, each token may take half as much fuel. With half the number, such masks,
which take 50 µs, are computed twice as often.
"""
BASE_BYTES, SOURCE_BYTES, MULTIPLE_BYTES, TOKEN_BYTES = 200_000, 350, 450, 5_000
"""Bytes of memory of each of a grammar's two matchers: a fixed number, and bytes for each byte of the source,
for each state of MAX_MULTIPLE, and for each token that texts have accepted. Measured resident memory of 20
kinds of schemas, with llguidance 1.9.1 and vocabularies of 259 and 8,192 tokens: 4 to 335 bytes for a byte of
the source (usually 50 to 130), up to 4,800 for a token. With half the numbers, the kept grammars would take
twice the memory that they should."""
# Maximum tokens of all texts of one compiled grammar: by then its lexer has grown by at most 100 MB.
MAX_GRAMMAR_TOKENS = 20_000


class CompiledGrammar:
    """A compiled grammar. Each call begins a text and returns its GrammarConstraint.

    The texts share the states that llguidance's lexer has computed, so each text makes the next one faster.
    The states take memory until all texts have ended. Guesses have a separate lexer, because guesses must not
    count towards the limits of a text.
    """

    def __init__(
        self, matchers: tuple[LLMatcher, LLMatcher], vocabulary: Vocabulary, param: str, source: str
    ) -> None:
        """Begin with matchers (for texts, for guesses). `param`: request field; `source`: the Lark text."""
        self._matcher, self._for_guesses = matchers
        self.vocabulary, self.param = vocabulary, param
        self._first_bytes = BASE_BYTES + SOURCE_BYTES * len(source)
        self._first_bytes += MULTIPLE_BYTES * MAX_MULTIPLE if '"multipleOf"' in source else 0
        self.n_tokens = 0

    def __call__(self) -> GrammarConstraint:
        return GrammarConstraint(self._matcher.deep_copy(), self._for_guesses.deep_copy(), self)

    @property
    def n_bytes(self) -> int:
        """Return an estimate of the bytes of memory that this grammar holds."""
        return 2 * (self._first_bytes + TOKEN_BYTES * self.n_tokens)

    @property
    def worn(self) -> bool:
        """True if texts have used up this grammar's limits; for more texts it must be compiled again."""
        return self.n_tokens >= MAX_GRAMMAR_TOKENS

    def check(self, matcher: LLMatcher) -> None:
        """Mark this grammar as worn and raise InvalidRequestError if `matcher` has exceeded LIMITS."""
        try:
            _check_matcher(matcher, self.param)
        except InvalidRequestError:
            self.n_tokens = MAX_GRAMMAR_TOKENS
            raise

    def can_go_on(self, matcher: LLMatcher) -> bool:
        """Return True if a matcher is within LIMITS; if it is not, mark this grammar as worn."""
        try:
            self.check(matcher)
        except InvalidRequestError:
            return False
        return True


def compile_gbnf(vocabulary: Vocabulary, text: str) -> CompiledGrammar:
    """Compile a grammar in llama.cpp's notation, in milliseconds.

    The first grammar of a large vocabulary takes about a second.

    Raises:
        InvalidRequestError: The grammar is invalid; the message names line and column.
    """
    rules = parse(text, vocabulary)
    return _compile_lark(vocabulary, to_lark(lex(rules, Budget()), rules), "grammar")


def compile_json_schema(
    vocabulary: Vocabulary, schema: Schema, param: str = "json_schema"
) -> CompiledGrammar:
    """Compile a grammar of the JSON texts that fit a schema, which Allowance.written() must have checked.

    Raises:
        InvalidRequestError: The schema (the field `param`) cannot be used; the message names the faulty part.
    """
    try:
        return _compile_lark(vocabulary, schema_to_lark(schema), param)
    except InvalidRequestError:
        if fault_of(schema) is None:
            raise
        place, why = blame(schema, fault_of)
        raise form_error(param, place, _better_message(why)) from None


def compile_lark(vocabulary: Vocabulary, text: str, param: str) -> CompiledGrammar:
    """Compile rules in llguidance's dialect of Lark, without %llguidance options. The root is `start`."""
    return _compile_lark(vocabulary, as_written(text), param)


def _compile_lark(vocabulary: Vocabulary, lark: str, param: str) -> CompiledGrammar:
    grammar = LLMatcher.grammar_from_lark(lark)

    def make() -> LLMatcher:
        return LLMatcher(tokenizer(vocabulary), grammar, log_level=0, limits=LIMITS)

    matcher = make()
    _check_matcher(matcher, param)
    first = matcher.deep_copy()
    first.compute_bitmask()
    _check_matcher(first, param)
    _check_beginning(matcher.deep_copy(), param)
    if first.is_error():
        raise InvalidRequestError(f"no token of this model can begin what the {param} wants", param=param)
    return CompiledGrammar((matcher, make()), vocabulary, param, lark)


def _check_beginning(matcher: LLMatcher, param: str) -> None:
    """Raise InvalidRequestError if reading the tokens that every text begins with exceeds LIMITS."""
    matcher.consume_tokens(_forced_tokens(matcher))
    matcher.compute_bitmask()
    _check_matcher(matcher, param)


def _forced_tokens(matcher: LLMatcher) -> list[int]:
    """Return tokens that spell the text that must come next; [] if the next text is not certain."""
    matcher.compute_ff_bytes()  # finds the forced text, which the next call splits into tokens
    tokens = matcher.compute_ff_tokens()
    return tokens[: matcher.validate_tokens(tokens)]


def _check_matcher(matcher: LLMatcher, param: str) -> None:
    """Raise InvalidRequestError if the matcher failed: on unknown syntax, or because it exceeded a limit."""
    reason = matcher.get_error().strip() if matcher.is_error() else ""
    if reason and not reason.startswith(_NO_WAY_ON):
        raise InvalidRequestError(
            f"the {param} cannot be used: {_better_message(_reason_sentence(reason))}", param=param
        )


def fault_of(schema: Schema) -> str | None:
    """Return llguidance's complaint about a schema, None if it has none."""
    reason = LLMatcher.validate_grammar(schema_to_lark(schema), None, limits=LIMITS)
    return _reason_sentence(reason) if reason else None


def _better_message(why: str) -> str:
    return next((better for start, better in _BETTER if why.startswith(start)), why)


def _reason_sentence(reason: str) -> str:
    """Return the part of llguidance's error message that means something to a client, as one sentence.

    Positions in duo's own grammar are left out; the cause of a regex error is kept.
    """
    lines = reason.strip().splitlines()
    text = _PREAMBLE.sub("", lines[0])
    said = next((line for line in lines if line.startswith("error: ")), None)
    return (f"{text} {said.removeprefix('error: ')}" if said else text)[:MAX_REASON]


class _Pieces:
    """A vocabulary in the form that llguidance takes."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        ids = range(vocabulary.size)
        self._vocabulary = vocabulary
        self.eos_token_id = min(vocabulary.eog) if vocabulary.eos is None else vocabulary.eos
        self.bos_token_id = vocabulary.bos
        plain = [vocabulary.piece(id) for id in ids]
        self.tokens = [plain[id] or vocabulary.piece(id, special=True) for id in ids]
        self.special_token_ids = [id for id in ids if self.tokens[id] and not plain[id]]

    def __call__(self, text: str) -> list[int]:
        return self._vocabulary.tokenize(text, special=False)


@functools.lru_cache(maxsize=KEPT_VOCABULARIES)
def tokenizer(vocabulary: Vocabulary) -> LLTokenizer:
    """Return llguidance's trie of all tokens, cached; making it takes a second for a large vocabulary."""
    return LLTokenizer(Wrapper(_Pieces(vocabulary)), eos_token=sorted(vocabulary.eog))


class _Guessing:
    """Follows a text with a separate matcher, to find forced tokens and to check guesses.

    Beyond LIMITS no token is forced, and every guess is allowed.
    """

    def __init__(self, matcher: LLMatcher, grammar: CompiledGrammar) -> None:
        self._matcher = matcher
        self._grammar = grammar
        self._committed: list[int] = []  # committed tokens that the matcher has not read yet
        self._n_unmasked = REFILL_TOKENS  # tokens since the last mask

    def accept(self, token: int) -> None:
        self._committed.append(token)

    def forced(self) -> tuple[int, ...]:
        return tuple(_forced_tokens(self._matcher)) if self._catch_up(0) else ()

    def n_allowed(self, tokens: Sequence[int]) -> int:
        n = _n_leading(self._matcher, tokens, self._grammar.vocabulary) if self._catch_up(len(tokens)) else 0
        return n if self._grammar.can_go_on(self._matcher) else len(tokens)

    def _catch_up(self, n_tokens: int) -> bool:
        """Read committed tokens before n_tokens guesses are checked; return False if LIMITS are exceeded."""
        read, self._committed = self._committed, []
        if read:
            self._matcher.consume_tokens(read)
        self._n_unmasked += len(read) + n_tokens
        if self._n_unmasked >= REFILL_TOKENS:
            self._matcher.deep_copy().compute_bitmask()
            self._n_unmasked = 0
        return self._grammar.can_go_on(self._matcher)


def _n_leading(matcher: LLMatcher, tokens: Sequence[int], vocabulary: Vocabulary) -> int:
    """Return the length of the longest prefix of `tokens` that may come next."""
    n = matcher.validate_tokens(list(tokens))
    if matcher.is_stopped():  # only an end token may follow, which validate_tokens() does not count
        return int(bool(tokens) and tokens[0] in vocabulary.eog)
    return n


class GrammarConstraint:
    """The Constraint of one text under a compiled grammar.

    Once the text has exceeded LIMITS, allows(), mask() and accept() raise InvalidRequestError.
    """

    def __init__(self, matcher: LLMatcher, for_guesses: LLMatcher, grammar: CompiledGrammar) -> None:
        self._matcher = matcher
        self._guessing = _Guessing(for_guesses, grammar)
        self._grammar = grammar
        self._vocabulary = grammar.vocabulary
        self._ended = False
        self._mask: npt.NDArray[np.bool_] | None = None
        self._n_unmasked = 0  # tokens since the last mask

    def allows(self, token: int) -> bool:
        if self._mask is not None:
            return bool(self._mask[token])
        return self._may_follow(token) or bool(self.mask()[token])

    def mask(self) -> npt.NDArray[np.bool_]:
        """Return a read-only array, (vocab size,), True for tokens that may follow; kept until accept()."""
        if self._mask is None:
            self._mask = self._compute_mask()
            self._mask.flags.writeable = False
        return self._mask

    def accept(self, token: int) -> None:
        if self._ended:
            return
        self._ended = token in self._vocabulary.eog or not self.allows(token)
        self._mask = None
        if not self._ended:
            self._matcher.consume_token(token)
            self._guessing.accept(token)
            self._grammar.n_tokens += 1
            self._n_unmasked += 1
            if self._n_unmasked >= REFILL_TOKENS:
                self._mask_bits(self._matcher.deep_copy())
            self._grammar.check(self._matcher)

    def forced(self) -> tuple[int, ...]:
        """Return tokens that spell the text that must follow. Other tokens that spell it are allowed too."""
        return () if self._ended else self._guessing.forced()

    def n_allowed(self, tokens: Sequence[int]) -> int:
        return len(tokens) if self._ended else self._guessing.n_allowed(tokens)

    def _may_follow(self, token: int) -> bool:
        if self._ended:
            return True
        n = _n_leading(self._matcher, (token,), self._vocabulary)
        self._grammar.check(self._matcher)
        return n == 1

    def _mask_bits(self, matcher: LLMatcher) -> bytes:
        self._n_unmasked = 0
        return matcher.compute_bitmask()

    def _compute_mask(self) -> npt.NDArray[np.bool_]:
        size = self._vocabulary.size
        if self._ended:
            return np.ones(size, dtype=np.bool_)
        bits = np.frombuffer(self._mask_bits(self._matcher), dtype=np.uint8)
        self._grammar.check(self._matcher)
        mask = np.unpackbits(bits, count=size, bitorder="little").view(np.bool_)
        if not mask.any():  # no token of the vocabulary can follow
            mask[list(self._vocabulary.eog)] = True
        return mask
