"""Describe the vocabularies of model files, and keep the descriptions, since each takes 0.3 s to make."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from server.lead.recollection import keep, of_files, recall
from server.llama.library import LoadedModel
from server.llama.llamacpp import LlamaVocabulary
from server.llama.options import Weights
from server.llama.parts import parts
from server.speculation.wire.presence import VocabularyCard, vocabulary_card


def card_of(path: Path, weights: Weights) -> VocabularyCard:
    """Return the card of the vocabulary in a model's file, without loading its weights.

    Args:
        path: The model's file.
        weights: How the model is loaded: overrides may change the vocabulary.

    Raises:
        StartupError: The file is missing, or llama.cpp cannot read it.
    """
    what = (*of_files(*parts(path)), weights.overrides)
    known: Any = recall("vocabulary", what)
    if known is not None:
        return VocabularyCard(known["size"], known["bos"], known["eos"], tuple(known["blocks"]))
    with closing(LoadedModel(path, Weights(overrides=weights.overrides), vocab_only=True)) as model:
        card = vocabulary_card(LlamaVocabulary(model.handle))
    keep("vocabulary", what, asdict(card))
    return card
