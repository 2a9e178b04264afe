"""Time the first text about a picture: `python -m benchmarks.picture_times --llama-server PATH`.

Each conversation has its own picture, which no server has seen, and a second turn about it. Without --mmproj,
both servers get a projector with random weights, as large as CLIP's base encoder. It takes as long as a real
one, but the replies mean nothing.
"""

from __future__ import annotations

import argparse
import base64
import io
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from benchmarks import program, report
from benchmarks.client import ask
from benchmarks.processes import Command, Options, Process, duo, llama_server, start
from benchmarks.prompts import Prompt

SIDE, PATCH, N_CHANNELS, N_INNER, N_BLOCKS = (
    336,
    14,
    768,
    3072,
    12,
)  # CLIP's base encoder, LLaVA's pictures
BLOCK = {
    **dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_out"), (N_CHANNELS, N_CHANNELS)),
    **dict.fromkeys(("ln1", "ln2"), (N_CHANNELS,)),
    "ffn_up": (N_INNER, N_CHANNELS),
    "ffn_down": (N_CHANNELS, N_INNER),
}


@dataclass(frozen=True, slots=True)
class TurnTimes:
    """Milliseconds to the first text of both turns, and the tokens of the first prompt."""

    first: float
    second: float
    n_prompt: int


def write_projector(path: Path, model: Path) -> None:
    """Write a projector with random weights for this model."""
    known = gguf.GGUFReader(model).fields
    n_embd = int(known[f"{known['general.architecture'].contents()}.embedding_length"].contents())
    ends = {"v.pre_ln": (N_CHANNELS,), "mm.0": (n_embd, N_CHANNELS), "mm.2": (n_embd, n_embd)}
    shapes = ends | {f"v.blk.{i}.{name}": shape for i in range(N_BLOCKS) for name, shape in BLOCK.items()}
    tensors = {f"{name}.weight": shape for name, shape in shapes.items()}
    tensors |= {f"{name}.bias": shape[:1] for name, shape in shapes.items()}
    tensors |= {"v.patch_embd.weight": (N_CHANNELS, 3, PATCH, PATCH)}
    tensors |= {
        "v.patch_embd.bias": (N_CHANNELS,),
        "v.position_embd.weight": ((SIDE // PATCH) ** 2, N_CHANNELS),
    }
    random = np.random.default_rng(7)
    with closing(gguf.GGUFWriter(path, "clip")) as writer:
        writer.add_bool("clip.has_vision_encoder", True)
        writer.add_bool("clip.use_gelu", True)
        writer.add_string("clip.projector_type", "mlp")
        numbers = {
            "image_size": SIDE,
            "patch_size": PATCH,
            "embedding_length": N_CHANNELS,
            "block_count": N_BLOCKS,
        }
        numbers |= {"feed_forward_length": N_INNER, "projection_dim": n_embd, "attention.head_count": 12}
        for name, number in numbers.items():
            writer.add_uint32(f"clip.vision.{name}", number)
        writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-5)
        for name in ("mean", "std"):
            writer.add_array(f"clip.vision.image_{name}", [0.5] * 3)
        for name, shape in tensors.items():
            values = random.normal(0, shape[-1] ** -0.5, shape) if len(shape) > 1 else np.ones(shape)
            writer.add_tensor(name, values.astype(np.float16 if len(shape) > 1 else np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()


def picture_url(seed: int) -> str:
    """Return a data: URL of a stand-in for a photo: smooth noise, 640 x 480 pixels, JPEG."""
    library: Any = import_module("PIL.Image")
    coarse = np.random.default_rng(seed).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    stream = io.BytesIO()
    library.fromarray(coarse).resize((640, 480), library.Resampling.BICUBIC).save(stream, "JPEG", quality=90)
    return f"data:image/jpeg;base64,{base64.b64encode(stream.getvalue()).decode()}"


def converse(server: Process, seed: int, max_tokens: int) -> TurnTimes:
    """Ask twice about a new picture. Raises DuoError."""
    shown = {"type": "image_url", "image_url": {"url": picture_url(seed)}}
    question = {"type": "text", "text": "Describe this picture in a few words."}
    messages: list[dict[str, Any]] = [{"role": "user", "content": [shown, question]}]
    more = {"ignore_eos": True}  # random weights may end a reply before its first text
    first = ask(server.port, Prompt("picture-1", messages), max_tokens, more=more)
    later = [{"role": "assistant", "content": first.text}, {"role": "user", "content": "And its colours?"}]
    second = ask(server.port, Prompt("picture-2", [*messages, *later]), max_tokens, more=more)
    return TurnTimes(first.first_ms, second.first_ms, first.n_prompt)


def compare(servers: Sequence[Process], args: argparse.Namespace) -> str:
    """Ask the servers in turn, in changing order, and return the table. Raises DuoError."""
    found: dict[str, list[TurnTimes]] = {server.name: [] for server in servers}
    for number in range(args.rounds + 1):
        for server in servers if number % 2 else servers[::-1]:
            times = converse(server, number, args.max_tokens)
            if number:  # the first one warms up
                found[server.name].append(times)
    rows: list[tuple[str, ...]] = []
    base = found[servers[0].name]
    for name, times in found.items():
        ratios = [own.first / other.first for own, other in zip(times, base, strict=True)]
        seconds = [own.second / own.first for own in times]
        own = (statistics.median(getattr(one, turn) for one in times) for turn in ("first", "second"))
        shares = (report.number(statistics.median(values), 2) for values in (ratios, seconds))
        rows.append((name, *(report.number(ms, 0) for ms in own), *shares, str(times[0].n_prompt)))
    heads = (
        "server | first turn, ms | second turn, ms | first to that of llama-server | second to first | tokens"
    )
    return report.table(heads, rows)


def measure(args: argparse.Namespace) -> program.Result:
    """Compare and return the section. Raises DuoError."""
    program.check_files(args.model, *filter(None, [args.mmproj]))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = args.mmproj or Path(folder) / "projector.gguf"
        if args.mmproj is None:
            write_projector(path, args.model)
        shared: Options = {
            "model": args.model,
            "mmproj": path,
            "ctx-size": 4096,
            "parallel": 1,
            "threads": args.threads,
        }
        commands = [
            Command("llama-server", llama_server(program.binary(args.llama_server), **shared)),
            Command("duo", duo("serve", *args.duo_flags, **shared)),
        ]
        servers = start(stack, commands)
        what = f"{report.model_line(args.model)}, {'its' if args.mmproj else 'a random'} projector"
        table = compare(servers, args)
    return "pictures, beside llama-server", [f"{what}; {args.threads} threads; {args.rounds} pictures", table]


def _parser() -> argparse.ArgumentParser:
    shared = "llama-server", "model", "threads", "duo-flags", "rounds", "max-tokens"
    parser = program.make_parser("picture_times", "How soon a picture is answered.", *shared)
    parser.add_argument("--mmproj", type=Path, help="the model's projector (default: random weights)")
    parser.set_defaults(rounds=7, max_tokens=4)  # a few tokens have a text among them
    return parser


main = program.main(_parser, measure)

if __name__ == "__main__":
    sys.exit(main())
