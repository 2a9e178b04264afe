"""Generate whole texts as token ids, without drafts; a replay drafter guesses from them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.prompts import Prompt
from server.engine.engine import Engine
from server.engine.events import Committed, Event, Failed
from server.engine.proposer import NoProposer
from server.engine.request import GenerationRequest
from server.engine.scheduler import Limits
from server.llama.backend import Backend, Vocabulary
from server.llama.llamacpp import LlamaBackend, LlamaOptions
from server.sampling.params import SamplingParams
from server.text.detokenize import spelled
from server.text.template import ChatTemplate

CTX_SIZE = 4096  # of the programs that record texts
GREEDY = SamplingParams(temperature=0.0)
N_CELLS, N_SEQS = 8192, 4  # of the KV cache of golden runs
WAYS = {
    "temperature 0": SamplingParams(temperature=0.0),
    "temperature 1": SamplingParams(1.0, top_k=0, top_p=1.0, min_p=0.0),
    "temperature 1, filtered": SamplingParams(1.0),
    "server's defaults": SamplingParams(),
}


@dataclass(frozen=True, slots=True)
class Text:
    """A conversation that a model has written."""

    tokens: tuple[int, ...]
    n_prompt: int  # tokens of the prompt, which come first
    sampling: SamplingParams  # the reply's tokens were drawn with these


def write(
    backend: Backend, prompts: Sequence[tuple[int, ...]], sampling: SamplingParams, max_tokens: int
) -> list[Text]:
    """Generate the backend's replies without drafts, each with its own seed. Raises DuoError."""
    requests = [(prompt, sampling.reseeded(i)) for i, prompt in enumerate(prompts, start=1)]
    written = generate(backend, requests, max_tokens)
    return [Text(tokens, len(prompt), own) for tokens, (prompt, own) in zip(written, requests, strict=True)]


def record(backend: Backend, prompts: Sequence[Prompt], max_tokens: int) -> list[tuple[int, ...]]:
    """Return the tokens of each prompt and reply at temperature 0, as the server commits them.

    Raises DuoError.
    """
    ids = prompt_ids(backend, prompts)
    return [generate(backend, [(one, GREEDY)], max_tokens)[0] for one in ids]  # each from an empty KV cache


def record_by(model: Path, threads: int, prompts: Sequence[Prompt], max_tokens: int) -> list[tuple[int, ...]]:
    """Return the tokens of each prompt and a model file's reply at temperature 0. Raises DuoError."""
    with closing(LlamaBackend(LlamaOptions(model, CTX_SIZE, 1, n_threads=threads))) as backend:
        return record(backend, prompts, max_tokens)


def prompt_ids(backend: Backend, prompts: Sequence[Prompt]) -> list[tuple[int, ...]]:
    """Return the prompts' tokens in the model's chat template."""
    vocabulary = backend.vocab
    bos, eos = (spelled(vocabulary, [token]) for token in (vocabulary.bos, vocabulary.eos))
    template = ChatTemplate(backend.chat_template, bos=bos, eos=eos)
    return [_tokenize(vocabulary, template.render(prompt.messages)) for prompt in prompts]


def _tokenize(vocabulary: Vocabulary, text: str) -> tuple[int, ...]:
    ids = vocabulary.tokenize(text, special=True)
    if vocabulary.add_bos and vocabulary.bos is not None and ids[:1] != [vocabulary.bos]:
        ids.insert(0, vocabulary.bos)
    return tuple(ids)


def generate(
    backend: Backend, requests: Sequence[tuple[Sequence[int], SamplingParams]], max_tokens: int
) -> list[tuple[int, ...]]:
    """Return the tokens of each prompt and reply. Run as many requests at once as there are sequences.

    Leaves the KV cache empty. Raises DuoError.
    """
    events: list[tuple[int, Event]] = []
    engine = Engine(
        backend,
        NoProposer(),
        lambda id, event: events.append((id, event)),
        n_slots=min(len(requests), backend.n_seqs),
        limits=Limits(n_batch=backend.n_batch, draft_max=0, leaves=1),
    )
    for id, (prompt, sampling) in enumerate(requests):
        engine.submit(id, GenerationRequest(prompt, sampling, max_tokens, stop_tokens=backend.vocab.eog))
    while engine.step():
        pass
    for seq in range(backend.n_seqs):
        backend.trim(seq, 0)
    found = [list(prompt) for prompt, _ in requests]
    for id, event in events:
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, Committed):
            found[id] += event.tokens
    return [tuple(tokens) for tokens in found]


def save(texts: Sequence[Sequence[int]], path: Path) -> None:
    """Write a JSON list of ids per line, as `duo-drafter --kind replay --texts` reads it."""
    path.write_text("".join(f"{json.dumps(list(text))}\n" for text in texts))


@contextmanager
def directory() -> Generator[Path]:
    """Yield a file for texts in a directory that is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="duo-texts-") as path:
        yield Path(path) / "texts.jsonl"
