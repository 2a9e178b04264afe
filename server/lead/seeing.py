"""Load the projector of a lead that reads pictures."""

from __future__ import annotations

import logging
from contextlib import ExitStack, closing
from pathlib import Path

from server.llama.backend import ReadsRows
from server.llama.library import computes_elsewhere, physical_rows
from server.llama.llamacpp import LlamaBackend
from server.pictures.grid_positions import GridPositions
from server.pictures.pixels import check_decoder
from server.pictures.projector import Projector
from server.pictures.registry import Pictures
from server.pictures.vocabulary import PictureVocabulary
from server.settings import LeadSettings

logger = logging.getLogger("duo.lead")


def load_pictures(
    stack: ExitStack, settings: LeadSettings, path: Path, target: LlamaBackend
) -> tuple[Pictures, ReadsRows]:
    """Return the pictures that a projector makes, and the target as it reads them.

    The target's vocabulary reads the pictures' words from then on.

    Args:
        stack: Closes the projector.
        settings: The lead's settings.
        path: The projector's file.
        target: The target.

    Raises:
        StartupError: The projector cannot be used.
    """
    check_decoder()
    options = target.options
    projector = Projector(
        path,
        target.model,
        n_threads=max(options.n_threads, options.n_threads_batch),
        gpu=computes_elsewhere(settings.weights),
        most_rows=physical_rows(target.handle),
    )
    pictures = Pictures(stack.enter_context(closing(projector)))
    target.vocab = PictureVocabulary(target.vocab, pictures)
    logger.info("  pictures %s, %d tokens for one of 1024 x 1024", path.name, projector.n_usual)
    return pictures, GridPositions(target) if projector.has_grids else target
