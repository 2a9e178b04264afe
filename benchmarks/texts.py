"""Whole texts as token ids, made by the engine itself at temperature 0: what a replay drafter knows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.prompts import Prompt
from server.engine.engine import Engine
from server.engine.events import Committed, Event, Failed
from server.engine.proposer import NoProposer
from server.engine.request import GenerationRequest
from server.llama.backend import Backend, Vocabulary
from server.sampling.params import SamplingParams
from server.text.template import ChatTemplate


def record(backend: Backend, prompts: Sequence[Prompt], max_tokens: int) -> list[tuple[int, ...]]:
    """Prompt and reply of each, as the server would commit them without drafts. Raises DuoError."""
    template = _template(backend)
    return [_text(backend, _prompt_ids(backend.vocab, template, prompt), max_tokens) for prompt in prompts]


def reply_length(backend: Backend, prompt: Prompt, text: Sequence[int]) -> int:
    """How many tokens of a recorded text are the reply."""
    return len(text) - len(_prompt_ids(backend.vocab, _template(backend), prompt))


def save(texts: Sequence[Sequence[int]], path: Path) -> None:
    """A JSON list of ids per line, as `duo-drafter --kind replay --texts` reads it."""
    path.write_text("".join(f"{json.dumps(list(text))}\n" for text in texts))


def _template(backend: Backend) -> ChatTemplate:
    vocabulary = backend.vocab
    bos, eos = (
        "" if token is None else vocabulary.piece(token, special=True).decode(errors="replace")
        for token in (vocabulary.bos, vocabulary.eos)
    )
    return ChatTemplate(backend.chat_template, bos=bos, eos=eos)


def _prompt_ids(vocabulary: Vocabulary, template: ChatTemplate, prompt: Prompt) -> list[int]:
    ids = vocabulary.tokenize(template.render(prompt.messages), special=True)
    if vocabulary.add_bos and vocabulary.bos is not None and ids[:1] != [vocabulary.bos]:
        ids.insert(0, vocabulary.bos)
    return ids


def _text(backend: Backend, prompt: list[int], max_tokens: int) -> tuple[int, ...]:
    events: list[Event] = []
    engine = Engine(backend, NoProposer(), lambda _, event: events.append(event), n_slots=1)
    request = GenerationRequest(
        prompt, SamplingParams(temperature=0.0), max_tokens, stop_tokens=backend.vocab.eog
    )
    engine.submit(1, request)
    while engine.step():
        pass
    text = list(prompt)
    for event in events:
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, Committed):
            text += event.tokens
    for seq in range(backend.n_seqs):
        backend.trim(seq, 0)  # the next text's engine begins with an empty cache
    return tuple(text)
