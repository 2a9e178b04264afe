"""duo probe: find what, besides the tokens, changes the logits of a model on this machine.

The same tokens are scored in batches of different widths (numbers of rows). If the logits' bits agree, a text
does not depend on how many drafted tokens are verified with it. If they do not, drafts may decide a near-tie
of two tokens. Other conversations may decide it too: they may occupy KV cells, so that a text gets different
cells, and their rows may be in the same batch.
"""

from __future__ import annotations

import dataclasses
import json
import string
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field
from pydantic_settings import SettingsConfigDict
from rich.console import Console
from rich.table import Table

from server.errors import StartupError
from server.flags import n_cores
from server.lead.attention import AttentionChoice
from server.lead.recollection import keep, of_logits
from server.llama.backend import Backend, Batch, Logits, Vocabulary
from server.llama.llamacpp import LlamaBackend
from server.llama.model_settings import ModelSettings, downloaded
from server.llama.options import FlashAttention
from server.settings import BUNDLED_MODEL

# Minimum rows that are scored, since some rows show no difference. Twice: the probe takes twice as long.
MIN_SCORED_ROWS = 16
N_PREFIX = 400  # tokens: flash attention on the CPU splits a row's work only beyond some hundred cells
N_RESIDENT = 300  # tokens of the other sequence: more than one block of cells in attention
PROBE_CELLS = 1024  # cells of the KV cache: room for both sequences and 64 rows
TEXT = """The lead reads the prompt once and then writes one word after another. While it writes, others
guess what it will say next and send their guesses ahead. Before each step it looks at what has arrived,
checks all of it at once and keeps what it would have said anyway. A good guess saves a step, a bad one costs
little, and nobody has to wait for anybody. In the end the text is the same as if the lead had been alone. """


class ProbeSettings(ModelSettings):
    """Score the same tokens in batches of different widths and compare the bits."""

    model_config = SettingsConfigDict(
        env_prefix="DUO_",
        frozen=True,
        cli_prog_name="duo probe",
        cli_shortcuts={"model": "m", "threads": "t"},
    )

    model: Path = Field(BUNDLED_MODEL, description="the GGUF file of the model")
    threads: int = Field(0, ge=0, description="CPU threads of the model; 0: automatic")
    kv_unified: bool = Field(True, description="one KV cache for all conversations; off: one for each")
    max_width: int = Field(16, ge=2, le=64, description="compare widths from 1 to this")
    json_output: bool = Field(False, alias="json", description="print JSON")


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Effects of a decode's width, and of another sequence, on the logits of the same rows.

    `differences` and `flips` compare each width with the first one.
    """

    widths: tuple[int, ...]
    n_rows: int
    classes: tuple[tuple[int, ...], ...]  # groups of widths with equal bits in all rows
    differences: tuple[float, ...]  # largest difference of a logit, by width
    flips: tuple[int, ...]  # number of rows in which another token is the likeliest, by width
    smallest_margin: float  # smallest lead of the likeliest logit over the second
    # widths whose bits changed when the sequence lay elsewhere in the KV cache; None: not probed
    moved: tuple[int, ...] | None = None
    moved_difference: float = 0.0  # largest such change of a logit
    # widths whose bits changed when half of the rows were another sequence's; None: not probed
    beside: tuple[int, ...] | None = None
    beside_difference: float = 0.0  # largest such change of a logit

    @property
    def exact(self) -> bool:
        """Return True if no bit of the logits depended on a decode's width or on another sequence."""
        return len(self.classes) == 1 and not self.moved and not self.beside

    def as_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "exact": self.exact, "max_difference": max(self.differences)}


def compare(rows_by_width: Mapping[int, Logits]) -> ProbeResult:
    """Compare the logits of equal rows at each width.

    rows_by_width: Arrays of shape (rows, vocabulary size), of at least one width and one row.
    """
    first = next(iter(rows_by_width.values()))
    classes: dict[bytes, list[int]] = {}
    for width, rows in rows_by_width.items():
        classes.setdefault(_row_bits(rows), []).append(width)
    return ProbeResult(
        widths=tuple(rows_by_width),
        n_rows=len(first),
        classes=tuple(map(tuple, classes.values())),
        differences=tuple(_largest_difference(rows, first) for rows in rows_by_width.values()),
        flips=tuple(
            int((rows.argmax(axis=1) != first.argmax(axis=1)).sum()) for rows in rows_by_width.values()
        ),
        smallest_margin=min(map(_smallest_margin, rows_by_width.values())),
    )


def probe_backend(backend: Backend, widths: Sequence[int]) -> ProbeResult:
    """Score the same rows at each width in sequence 0, then again after filling sequence 1, if it exists.

    The number of rows is the largest width, but at least MIN_SCORED_ROWS if there is room. The KV cache must
    be empty, and is empty afterwards.

    Raises:
        ValueError: The context is too small for these widths.
    """
    widest, room = max(widths), (backend.n_ctx - 1) // 2
    if widest > min(room, backend.n_batch):
        raise ValueError(f"the context has no room for widths up to {widest}")
    n_rows = max(widest, min(MIN_SCORED_ROWS, room))
    n_prefix = min(N_PREFIX, backend.n_ctx - 2 * n_rows)
    tokens = _text_tokens(backend.vocab, n_prefix + 2 * n_rows)
    try:
        rows = _score_at(backend, tokens, n_prefix, widths)
        result = compare(rows)
        backend.trim(0, 0)
        n_resident = min(N_RESIDENT, backend.n_ctx, backend.n_cells - len(tokens))
        if backend.n_seqs < 2 or n_resident < 1:
            return result
        _evaluate_tokens(backend, 1, tokens[:n_resident])
        there = _score_at(backend, tokens, n_prefix, widths)
        moved, change = _changed_widths(there, rows)
        result = dataclasses.replace(result, moved=moved, moved_difference=change)
        if not backend.can_trim or widest == 1:
            return result
        beside, change = _changed_widths(_score_at(backend, tokens, n_prefix, widths, n_resident), there)
        return dataclasses.replace(result, beside=beside, beside_difference=change)
    finally:
        backend.trim(0, 0)
        if backend.n_seqs > 1:
            backend.trim(1, 0)


def _changed_widths(
    rows: Mapping[int, Logits], former: Mapping[int, Logits]
) -> tuple[tuple[int, ...], float]:
    """Return the widths whose logits differ in any bit from `former`, and the largest difference."""
    changed = tuple(width for width in rows if _row_bits(rows[width]) != _row_bits(former[width]))
    return changed, max(_largest_difference(rows[width], former[width]) for width in rows)


def _score_at(
    backend: Backend,
    tokens: Sequence[int],
    n_prefix: int,
    widths: Sequence[int],
    n_resident: int | None = None,
) -> dict[int, Logits]:
    """Return the logits after each token of the first half, by width.

    `tokens` are a prefix, which is evaluated first, and two halves of equal length. Tokens of the second half
    only fill up batches to their width.

    Args:
        backend: The model.
        tokens: The prefix and both halves.
        n_prefix: Tokens of the prefix.
        widths: Numbers of rows of a batch.
        n_resident: Number of tokens in sequence 1, which also gets half of each batch's rows; None: sequence
            1 is not used.
    """
    n_rows = (len(tokens) - n_prefix) // 2
    rows: dict[int, Logits] = {}
    for width in widths:
        again = bool(rows) and backend.can_trim
        backend.trim(0, n_prefix if again else 0)
        if not again:
            _evaluate_tokens(backend, 0, tokens[:n_prefix])
        n_beside = 0 if n_resident is None else width // 2
        parts: list[Logits] = []
        for begin in range(n_prefix, n_prefix + n_rows, width - n_beside):
            batch = Batch()
            batch.extend(0, begin, tokens[begin : begin + width - n_beside], width - n_beside)
            if n_resident is not None:
                batch.extend(1, n_resident, tokens[:n_beside], n_beside)
            parts.append(backend.decode(batch)[: width - n_beside].copy())
            if n_beside and n_resident is not None:
                backend.trim(1, n_resident)
        rows[width] = np.concatenate(parts)[:n_rows]
    return rows


def _evaluate_tokens(backend: Backend, seq: int, tokens: Sequence[int]) -> None:
    for begin in range(0, len(tokens), backend.n_batch):
        batch = Batch()
        batch.extend(seq, begin, tokens[begin : begin + backend.n_batch], 0)
        backend.decode(batch)


def _text_tokens(vocabulary: Vocabulary, n: int) -> list[int]:
    """Return the first n tokens of TEXT, repeated if it is too short."""
    begin = [vocabulary.bos] if vocabulary.add_bos and vocabulary.bos is not None else []
    text = vocabulary.tokenize(TEXT, special=False)
    return (begin + text * (n // len(text) + 1))[:n]


def _row_bits(rows: Logits) -> bytes:
    return sha256(rows.tobytes()).digest()


def _largest_difference(a: Logits, b: Logits) -> float:
    """Return the largest difference of any logit; equal infinities do not differ."""
    with np.errstate(invalid="ignore"):
        return float(np.abs(np.where(a == b, np.float32(0), a - b)).max())


def _smallest_margin(rows: Logits) -> float:
    top = np.partition(rows, -2, axis=1)[:, -2:]
    return float((top[:, 1] - top[:, 0]).min())


def probe(settings: ProbeSettings) -> int:
    """Probe a model; print a table or JSON, and return 0. Raises StartupError if it cannot be loaded."""
    if settings.max_width > settings.batch_size:
        raise StartupError(
            f"--max-width {settings.max_width} needs at least --batch-size {settings.max_width}"
        )
    n_threads = settings.threads or n_cores()
    settings = downloaded(settings)
    options = settings.options(settings.model, n_cells=PROBE_CELLS, n_seqs=2, n_threads=n_threads)
    options = dataclasses.replace(options, n_streams=0 if settings.kv_unified else 2)
    widths = range(1, settings.max_width + 1)
    with closing(LlamaBackend(options, AttentionChoice())) as backend:
        options = backend.options
        result = probe_backend(backend, widths)
        about = f"{backend.description}, {n_threads} thread{'s' if n_threads > 1 else ''}"
    keep("probe", of_logits(options), result.as_json())  # shown by /health of a lead with the same options
    attention = options.flash_attention
    if settings.json_output:
        shown = settings.model_dump(include={"gpu_layers", "cache_type_k", "cache_type_v"})
        what = {"model": str(settings.model), "threads": n_threads, "flash_attn": attention, **shown}
        print(json.dumps({**what, **result.as_json()}, indent=2))
    else:
        console = Console()
        title = f"{about}, {_attention_name(attention, chosen=settings.flash_attn != attention)}"
        console.print(table(result, title), *verdict(result), sep="\n", highlight=False)
    return 0


def _attention_name(attention: FlashAttention, *, chosen: bool) -> str:
    """Return the name of a kind of attention. chosen: True if a measurement chose it, not the flag."""
    if attention == "auto":
        return "flash attention as llama.cpp chooses"
    how = "with" if attention == "on" else "without"
    return f"{how} flash attention" + chosen * ", chosen by measuring"


def table(result: ProbeResult, title: str) -> Table:
    table = Table(title=title, title_justify="left")
    difference_to = f"difference to {result.widths[0]}"
    for heading in ("rows", "bits", difference_to, "other argmax", "position in the cache", "neighbours"):
        table.add_column(heading, justify="right")
    names = {width: _class_letter(i) for i, widths in enumerate(result.classes) for width in widths}
    for width, difference, flips in zip(result.widths, result.differences, result.flips, strict=True):
        others = (
            _why_it_matters(width, result.moved),
            "" if width == 1 else _why_it_matters(width, result.beside),
        )
        table.add_row(str(width), names[width], f"{difference:.1e}", f"{flips} of {result.n_rows}", *others)
    return table


def _why_it_matters(width: int, changed: Sequence[int] | None) -> str:
    return "" if changed is None else "matters" if width in changed else "no matter"


def _class_letter(index: int) -> str:
    """Return the name of a class of widths: A, B … Z, then numbers."""
    return string.ascii_uppercase[index] if index < 26 else str(index)


def verdict(result: ProbeResult) -> list[str]:
    """Return the meaning of the result, in sentences; the last one is a recommendation."""
    n, widest = len(result.classes), max(result.widths)
    lines = [
        f"All widths up to {widest} give the same bits."
        if n == 1
        else f"{n} classes of widths up to {widest}, each with its own bits.",
        f"The closest two tokens are {result.smallest_margin:.2g} apart; widths differ by up to "
        f"{max(result.differences):.2g}.",
    ]
    if result.moved:
        lines.append(
            f"The position in the KV cache changes logits by up to {result.moved_difference:.2g}: with "
            "--no-kv-unified each conversation has its own KV cache."
        )
    if result.beside:
        lines.append(f"Rows of other conversations change logits by up to {result.beside_difference:.2g}.")
    untried = [
        what
        for what, changed in (("another KV cache position", result.moved), ("neighbours", result.beside))
        if changed is None
    ]
    if untried:
        lines.append(f"Not tried with this model: {' and '.join(untried)}.")
    return [*lines, "", f"Verdict: {_advice_text(result)}"]


def _advice_text(result: ProbeResult) -> str:
    if result.exact:
        return (
            f"drafts cannot change a text here in steps of up to {max(result.widths)} rows. Wider ones were "
            "not tried."
        )
    most = max(result.differences) + result.moved_difference + result.beside_difference
    return (
        "drafts change a text only where the two highest sampling logits are less than "
        f"{2 * most:.2g} apart. With --exactness width-stable they never do, but replies are made one at a "
        "time."
    )
