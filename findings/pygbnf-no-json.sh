#!/usr/bin/env bash
# pygbnf 0.5.0, which makes grammars for llama.cpp from Python types (`grammar_from_type`), so that a reply can be parsed as JSON
# (llguidance 1.9.1 runs them here).
# Expected: what the grammar admits is JSON of the type, and what Pydantic reads as the type can be said.
# Seen:     a string may hold a line break as it is; a Literal with quotation marks is written without backslashes; True is
#           written `True`: json.loads refuses all three. The right spellings of the last two are refused, as are the numbers of
#           an IntEnum, which become strings.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" --quiet --disable-pip-version-check install pygbnf==0.5.0 llguidance==1.9.1 pydantic==2.14.4
"$dir/venv/bin/python" - <<'PY'
import enum
from importlib.metadata import version
from typing import Literal

import pydantic
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import gbnf_to_lark
from pygbnf import grammar_from_type


class Bytes:
    eos_token_id, bos_token_id, special_token_ids = 256, None, [256]
    tokens = [*(bytes([i]) for i in range(256)), b"<eos>"]

    def __call__(self, text):
        return list(text.encode() if isinstance(text, str) else text)


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


tokenizer = LLTokenizer(TokenizerWrapper(Bytes()))


def admits(kind, text):
    grammar = gbnf_to_lark(grammar_from_type(kind).to_gbnf())
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(grammar))
    return all(matcher.try_consume_tokens([byte]) == 1 for byte in text.encode()) and matcher.is_accepting()


def fits(kind, text):
    try:
        pydantic.TypeAdapter(kind).validate_json(text)
        return True
    except pydantic.ValidationError:
        return False


CASES = [
    (str, '"two lines"', (True, True)),
    (str, '"two\nlines"', (False, True)),
    (Literal['say "hi"'], r'"say \"hi\""', (True, False)),
    (Literal['say "hi"'], '"say "hi""', (False, True)),
    (Literal[True, "auto"], "true", (True, False)),
    (Literal[True, "auto"], "True", (False, True)),
    (Level, "1", (True, False)),
    (Level, '"1"', (True, True)),  # Pydantic reads numbers in strings as well
]
print("pygbnf", version("pygbnf"))
for kind, text, expected in CASES:
    seen = fits(kind, text), admits(kind, text)
    print(f"{kind}, {text!r}: Pydantic {seen[0]}, grammar {seen[1]}")
    assert seen == expected, "changed"
PY
