"""Schemas and grammars that are as deep as they can be: an overflow of the stack would end the process."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from server.errors import InvalidRequestError
from server.grammar.compiler import Compiler
from server.grammar.deep_stack import on_deep_stack
from server.grammar.json_schema import MAX_CHARACTERS, MAX_DEPTH
from tests.fake_backend import FakeVocabulary

Link = Callable[[dict[str, Any]], dict[str, Any]]
LINKS: dict[str, Link] = {
    "items": lambda inner: {"items": inner},
    "prefixItems": lambda inner: {"prefixItems": [inner]},
    "properties": lambda inner: {"properties": {"": inner}},
    "anyOf": lambda inner: {"anyOf": [inner, {"type": "array"}]},
}
SMALL_STACK_BYTES = 2 << 20  # of threads where stacks have no limit, the smallest of usual ones


def chain(link: Link, n_levels: int) -> dict[str, Any]:
    """Return the longest allowed schema: n_levels in each definition, which refers to the next."""
    definitions: dict[str, Any] = {"0": {}}
    length = 100  # characters
    while True:
        inner: dict[str, Any] = {"$ref": f"#/$defs/{len(definitions) - 1}"}
        for _ in range(n_levels):
            inner = link(inner)
        length += len(json.dumps({str(len(definitions)): inner}))
        if length > MAX_CHARACTERS:
            return {"$ref": f"#/$defs/{len(definitions) - 1}", "$defs": definitions}
        definitions[str(len(definitions))] = inner


def compile_all() -> None:
    """Compile all schemas on this thread, whatever its stack."""
    compiler = Compiler(FakeVocabulary())
    for link in LINKS.values():
        for n_levels in (1, MAX_DEPTH // 4):
            try:
                compiler.json_schema(chain(link, n_levels))().mask()
            except InvalidRequestError:
                continue


def on_small_stack() -> None:
    threading.stack_size(SMALL_STACK_BYTES)
    thread = threading.Thread(target=compile_all)
    thread.start()
    thread.join()
    print("done")


def test_deepest_schemas_end_no_process():
    program = f"from {__name__} import on_small_stack; on_small_stack()"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "done\n"


def chain_of_rules(n: int) -> str:
    return "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(n)) + f'r{n} ::= "a"'


def test_a_chain_of_rules_is_no_defect():
    compiler = Compiler(FakeVocabulary())
    for n in (150, 330, 600):
        assert compiler.gbnf(chain_of_rules(n))().n_allowed(b"ab") == 1
    with pytest.raises(InvalidRequestError, match="too complex"):
        compiler.gbnf(chain_of_rules(990))


def test_deep_work_raises_normally():
    def fail() -> None:
        raise ValueError("so")

    before = threading.stack_size()
    with pytest.raises(ValueError, match="so"):
        on_deep_stack(fail)
    assert threading.stack_size() == before
    assert on_deep_stack(lambda: threading.current_thread().name) == "duo-grammar"
