#!/usr/bin/env bash
# pydantic-gbnf-grammar-generator 0.1.1, which makes grammars for llama.cpp from Pydantic models (llguidance 1.9.1 runs them here).
# Expected: the grammar admits what the model admits: a negative integer, an empty list; and only JSON.
# Seen:     `int` is written as digits alone, so a temperature of -5 cannot be said, and a list has at least one element, so the
#           model must make one up. `007`, which is no JSON, is admitted. A `float` may be negative. No error is raised.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" --quiet --disable-pip-version-check install pydantic-gbnf-grammar-generator==0.1.1 pydantic==2.14.4 llguidance==1.9.1
"$dir/venv/bin/python" - <<'PY'
from importlib.metadata import version

import pydantic
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import gbnf_to_lark
from pydantic_gbnf_grammar_generator import generate_gbnf_grammar_and_documentation


class Bytes:
    eos_token_id, bos_token_id, special_token_ids = 256, None, [256]
    tokens = [*(bytes([i]) for i in range(256)), b"<eos>"]

    def __call__(self, text):
        return list(text.encode() if isinstance(text, str) else text)


class Degrees(pydantic.BaseModel):
    n: int


class Exact(pydantic.BaseModel):
    n: float


class Marks(pydantic.BaseModel):
    n: list[int]


tokenizer = LLTokenizer(TokenizerWrapper(Bytes()))


def admits(model, text):
    grammar, _ = generate_gbnf_grammar_and_documentation([model])
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(gbnf_to_lark(grammar)))
    return all(matcher.try_consume_tokens([byte]) == 1 for byte in text.encode()) and matcher.is_accepting()


def fits(model, text):
    try:
        return bool(model.model_validate_json(text))
    except pydantic.ValidationError:
        return False


print("pydantic-gbnf-grammar-generator", version("pydantic-gbnf-grammar-generator"))
seen = []
for model, value in ((Degrees, "5"), (Degrees, "-5"), (Degrees, "007"), (Exact, "-5"), (Marks, "[1,2]"), (Marks, "[]")):
    text = f'{{\n "n": {value}\n}}'
    seen.append((fits(model, text), admits(model, f" {text}")))
    print(f"{model.__annotations__['n']} {value}: Pydantic {seen[-1][0]}, grammar {seen[-1][1]}")
assert seen == [(True, True), (True, False), (False, True), (True, True), (True, True), (True, False)], "changed"
PY
