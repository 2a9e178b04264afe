"""Run llama.cpp's newest server, from the package xllamacpp, with llama-server's flags that compare uses.

`python -m benchmarks.compare --llama-server PYTHON` runs this file with that interpreter, which has the
package. duo's own environment need not have it, so nothing of duo is imported here.
"""

from __future__ import annotations

import argparse
import importlib
import signal
from collections.abc import Sequence
from typing import Any


def parameters(package: Any, args: argparse.Namespace) -> Any:
    """Return the CommonParams of these flags; flags that are not given keep llama-server's defaults."""
    params = package.CommonParams()
    params.model.path = args.model
    params.mmproj.path = args.mmproj or params.mmproj.path
    params.port = args.port
    params.n_ctx, params.n_parallel = args.ctx_size, args.parallel
    for cores in (params.cpuparams, params.cpuparams_batch):
        cores.n_threads = args.threads or cores.n_threads
    kinds = package.ggml_type
    for side in ("k", "v"):
        kind = vars(args)[f"cache_type_{side}"]
        if kind:
            setattr(params, f"cache_type_{side}", kinds[f"GGML_TYPE_{kind.upper()}"])
    if args.spec_type:
        names = [kind.upper().replace("-", "_") for kind in args.spec_type.split(",")]
        known = package.common_speculative_type
        params.speculative.types = [known[f"COMMON_SPECULATIVE_TYPE_{name}"] for name in names]
    draft = params.speculative.draft
    draft.mparams.path = args.model_draft or draft.mparams.path
    draft.n_max = args.spec_draft_n_max or draft.n_max
    draft.p_min = args.spec_draft_p_min
    for cores in (draft.cpuparams, draft.cpuparams_batch):
        cores.n_threads = args.spec_draft_threads or args.threads or cores.n_threads
    return params


def flag_parser() -> argparse.ArgumentParser:
    """Return the parser of the flags that compare gives to llama-server."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--model", required=True, help="the GGUF file")
    add("--mmproj", default="", help="the model's projector, a GGUF file")
    add("--host", help="ignored: it listens on 127.0.0.1")
    add("--port", type=int, required=True, help="where to listen")
    add("--offline", action="store_true", help="ignored: nothing is fetched")
    add("--ctx-size", type=int, default=4096, help="of all slots together")
    add("--parallel", type=int, default=1, help="slots")
    add("--threads", type=int, default=0, help="of the model; 0: the package's default")
    add("--cache-type-k", help="type of the KV cache's keys")
    add("--cache-type-v", help="type of its values")
    add("--spec-type", default="", help="kinds of drafts with commas between")
    add("--model-draft", default="", help="the draft model's GGUF file")
    add("--spec-draft-n-max", type=int, default=0, help="most drafted tokens of a step")
    add("--spec-draft-p-min", type=float, default=0.0, help="a less probable token ends the draft")
    add("--spec-draft-threads", type=int, default=0, help="of the draft model")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until SIGTERM."""
    package = importlib.import_module("xllamacpp")
    stop = signal.SIGTERM, signal.SIGINT
    signal.pthread_sigmask(signal.SIG_BLOCK, stop)  # the server's threads inherit it: this one waits
    server = package.Server(parameters(package, flag_parser().parse_args(argv)))
    print(f"listening on {server.listening_address}", flush=True)
    signal.sigwait(stop)


if __name__ == "__main__":
    main()
