"""Whether two turns with a call of a tool go through with every chat template of a directory, over HTTP.

The bundled model answers with each template in turn, a call being required of it; the OpenAI SDK and
LangChain read the call and send the tool's result, which the next prompt has to show. What the model says
does not matter: it was trained with none of these templates.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import openai

from benchmarks import program
from server.llama.llamacpp import LlamaBackend, LlamaOptions
from server.settings import BUNDLED_MODEL
from tests.clients.two_turns import by_langchain, by_the_sdk, speaking


def faults(directory: Path) -> Iterator[tuple[str, str]]:
    """Every template (*.jinja) by name, and what went wrong with it, "" if nothing did."""
    options = LlamaOptions(BUNDLED_MODEL, n_cells=8192, n_seqs=16, n_threads=1)
    with closing(LlamaBackend(options)) as backend:
        for path in sorted(directory.glob("*.jinja")):
            yield path.stem, _fault(backend, path.read_text(encoding="utf-8"))


def _fault(backend: LlamaBackend, template: str) -> str:
    with speaking(backend, template) as lead, openai.DefaultHttpxClient() as http:
        try:
            by_the_sdk(lead)
            by_langchain(lead.url, {"http_client": http})
        except Exception as error:  # whatever a client raises
            return f"{type(error).__name__}: {error}"
    return ""


def make_parser() -> argparse.ArgumentParser:
    parser = program.make_parser("format_turns", __doc__ or "")
    parser.add_argument("templates", type=Path, help="a directory of chat templates (*.jinja)")
    return parser


def measure(args: argparse.Namespace) -> program.Result:
    found = dict(faults(args.templates))
    wrong = [f"- {template}: {fault}" for template, fault in found.items() if fault]
    n_right = len(found) - len(wrong)
    return f"two turns with {len(found)} chat templates", [f"go through: {n_right} of {len(found)}", *wrong]


main = program.main(make_parser, measure)

if __name__ == "__main__":
    sys.exit(main())
