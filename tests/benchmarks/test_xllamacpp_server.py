"""The launcher hands llama-server's flags to the package; the package itself is replaced by its names."""

from __future__ import annotations

import argparse
import enum
import sys
from pathlib import Path
from types import SimpleNamespace

from benchmarks.processes import PACKAGED, llama_server
from benchmarks.xllamacpp_server import flag_parser, parameters


class GgmlType(enum.IntEnum):
    GGML_TYPE_F32 = 0
    GGML_TYPE_F16 = 1


class Speculative(enum.IntEnum):
    COMMON_SPECULATIVE_TYPE_NONE = 0
    COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE = 1
    COMMON_SPECULATIVE_TYPE_NGRAM_MOD = 9


def cores() -> SimpleNamespace:
    return SimpleNamespace(n_threads=4)


def common_params() -> SimpleNamespace:
    draft = SimpleNamespace(
        mparams=SimpleNamespace(path=""), n_max=3, p_min=0.0, cpuparams=cores(), cpuparams_batch=cores()
    )
    return SimpleNamespace(
        model=SimpleNamespace(path=""),
        mmproj=SimpleNamespace(path=""),
        cpuparams=cores(),
        cpuparams_batch=cores(),
        speculative=SimpleNamespace(types=[Speculative.COMMON_SPECULATIVE_TYPE_NONE], draft=draft),
    )


PACKAGE = SimpleNamespace(CommonParams=common_params, ggml_type=GgmlType, common_speculative_type=Speculative)


def parsed(*flags: str) -> argparse.Namespace:
    return flag_parser().parse_args(["--model", "m.gguf", "--port", "1", *flags])


def test_flags_become_parameters():
    flags = "--ctx-size 8192 --parallel 2 --threads 2 --cache-type-k f32 --spec-type draft-simple,ngram-mod"
    drafting = "--model-draft d.gguf --spec-draft-n-max 7 --spec-draft-p-min 0.5 --spec-draft-threads 1"
    params = parameters(PACKAGE, parsed(*flags.split(), *drafting.split()))
    assert (params.model.path, params.port, params.n_ctx, params.n_parallel) == ("m.gguf", 1, 8192, 2)
    assert params.cpuparams.n_threads == params.cpuparams_batch.n_threads == 2
    assert params.cache_type_k is GgmlType.GGML_TYPE_F32
    assert [int(kind) for kind in params.speculative.types] == [1, 9]
    draft = params.speculative.draft
    assert (draft.mparams.path, draft.n_max, draft.p_min, draft.cpuparams.n_threads) == ("d.gguf", 7, 0.5, 1)


def test_defaults_stay_without_flags():
    params = parameters(PACKAGE, parsed())
    assert params.cpuparams.n_threads == 4
    assert params.speculative.draft.n_max == 3
    assert not hasattr(params, "cache_type_k")
    assert params.speculative.types == [Speculative.COMMON_SPECULATIVE_TYPE_NONE]


def test_interpreter_runs_the_launcher():
    line = llama_server(Path(sys.executable), model="m.gguf")
    assert line[:4] == (sys.executable, str(PACKAGED), "--model", "m.gguf")
    assert PACKAGED.is_file()
    assert llama_server(Path("/bin/llama-server"), model="m.gguf")[:2] == ("/bin/llama-server", "--model")
