"""What the run of llama.cpp's server tests makes of their flags, numbers and results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from server.flags import read
from server.settings import LeadSettings
from tests.dialect.__main__ import COUNT, ROOT, Outcomes, report
from tests.dialect.flags import for_duo, translated

THEIRS = ["--port", "8080", "--offline", "--hf-repo", "a/b", "--hf-file", "c.gguf", "--no-slots", "--jinja"]


def test_named_model_is_replaced():
    argv = [*THEIRS, "--model-draft", "far.gguf", "--embedding"]
    found = translated(argv, "here.gguf", "draft.gguf")
    assert found[:4] == ["--model", "here.gguf", "--pooling", "mean"]
    assert found[found.index("--model-draft") + 1] == "draft.gguf"
    assert not {"a/b", "c.gguf", "far.gguf"} & set(found)
    assert "--model" not in translated(["--port", "1"], "here.gguf", "draft.gguf")


def test_translated_flags_are_valid():
    argv = [
        *translated(THEIRS, "here.gguf", "d.gguf"),
        "--parallel",
        "2",
        "--alias",
        "a",
        "--n-predict",
        "64",
    ]
    settings = read(LeadSettings, for_duo(argv))
    assert (settings.port, settings.model, settings.threads) == (8080, Path("here.gguf"), 1)
    assert (settings.names, settings.predict) == (("a", "*"), 64)
    assert not any((settings.slots, settings.metrics, settings.kv_unified))
    assert read(LeadSettings, for_duo(["--metrics", "--kv-unified", "--parallel", "2"])).kv_unified


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        ('assert res.body["timings"]["prompt_n"] == 21  # all', '"prompt_n"] == Tokens(21)  # all'),
        ("assert res.body['usage']['prompt_tokens'] == 2 * 9", "'prompt_tokens'] == Tokens(2 * 9)"),
        ('assert res_tok.body["tokens"][0] == bosId', '["tokens"][0] == Tokens(bosId)'),
        ('assert timings["predicted_per_second"] == 0.0', "== 0.0"),
        ("assert usage['prompt_tokens'] == usage['total_tokens']", "== usage['total_tokens']"),
    ],
)
def test_token_counts_match_llama_server(line: str, becomes: str):
    assert becomes in COUNT.sub(r"\1Tokens(\2)", line)


def test_only_what_llama_server_passes_counts(tmp_path: Path):
    results = tmp_path / "results"
    lines = [
        {"case": "unit/test_a.py::one", "expected": "(little|girl)+"},
        *({"case": f"unit/test_a.py::{name}", "outcome": "passed", "why": ""} for name in ("one", "two")),
        {"case": "unit/test_b.py::three", "outcome": "failed", "why": "no"},
    ]
    results.write_text("\n".join(map(json.dumps, lines)))
    reference = Outcomes.read(results)
    assert reference.of_model == [("unit/test_a.py::one", "(little|girl)+")]
    found = Outcomes(
        {"unit/test_a.py::one": "passed", "unit/test_a.py::two": "failed", "unit/test_b.py::three": "passed"},
        {"unit/test_a.py::two": "404"},
    )
    assert list(report(reference, found)) == [
        "   1 of   2  unit/test_a.py",
        "   0 of   0  unit/test_b.py",
        "   1 of   2  in all",
        "unit/test_a.py::two: 404",
    ]


def test_the_plugin_is_found_there():
    assert (ROOT / "tests" / "dialect" / "plugin.py").is_file()
