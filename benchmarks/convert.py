"""The same model in another tensor type: `python -m benchmarks.convert --model M --type f32 --out FILE`.

In F32 llama.cpp's kernels give the same text whatever the width of a batch; the tests of exactness need that.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gguf_file import KINDS, GGUFSource, PlannedTensor, kind_for, write
from server.errors import DuoError


def convert(model: Path, out: Path, kind: str = "f32") -> None:
    """Write `model` with its matrices as `kind` (see KINDS); metadata stays, but for the file type."""
    source, wanted = GGUFSource(model), KINDS[kind]
    write(
        out,
        source,
        wanted,
        [
            PlannedTensor(
                name,
                source.shape(name),
                kind_for(source.shape(name), wanted),
                functools.partial(source.values, name),
            )
            for name in source.names
        ],
        {},
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.convert", description=convert.__doc__)
    parser.add_argument("--model", type=Path, required=True, help="the GGUF file to convert")
    parser.add_argument("--type", choices=KINDS, default="f32", help="type of the matrices")
    parser.add_argument("--out", type=Path, required=True, help="the GGUF file to write")
    args = parser.parse_args(argv)
    try:
        convert(args.model, args.out, args.type)
    except DuoError as error:
        print(f"convert: {error.message}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
