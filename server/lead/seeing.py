"""Find and load the projector of a lead that reads pictures."""

from __future__ import annotations

import logging
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TypeVar

from server.errors import StartupError
from server.llama.backend import ReadsRows
from server.llama.hub import FetchedModel
from server.llama.library import computes_elsewhere, physical_rows
from server.llama.llamacpp import LlamaBackend
from server.pictures.grid_positions import GridPositions
from server.pictures.pixels import check_decoder
from server.pictures.projector import Projector
from server.pictures.registry import Pictures
from server.pictures.vocabulary import PictureVocabulary
from server.settings import LeadSettings

logger = logging.getLogger("duo.lead")

S = TypeVar("S", bound=LeadSettings)


def with_projector(settings: S, fetched: FetchedModel | None) -> S:
    """Return the settings with the projector beside the model, if they allow it and name no projector.

    In the result, `mmproj_auto` is True only if this function has added the projector.

    Args:
        settings: The settings.
        fetched: The model, if it is from Hugging Face.

    Raises:
        StartupError: The projector cannot be downloaded.
    """
    if settings.mmproj or not settings.mmproj_auto or not (fetched and fetched.projector):
        return settings.model_copy(update={"mmproj_auto": False})
    path = fetched.fetch_beside([fetched.projector])
    logger.info("  pictures %s, found beside the model; --no-mmproj leaves it out", path.name)
    return settings.model_copy(update={"mmproj": path})


def load_found_pictures(
    stack: ExitStack, settings: LeadSettings, target: LlamaBackend
) -> tuple[Pictures, ReadsRows] | None:
    """Load the settings' projector with load_pictures(); return None if there is none.

    A projector that with_projector() has added is left out if it cannot be used, which is logged. Raises
    StartupError if a projector that the user named cannot be used.
    """
    if settings.mmproj is None:
        return None
    try:
        return load_pictures(stack, settings, settings.mmproj, target)
    except StartupError as error:
        if not settings.mmproj_auto:
            raise
        logger.warning("  pictures none: %s", error.message)
        return None


def load_pictures(
    stack: ExitStack, settings: LeadSettings, path: Path, target: LlamaBackend
) -> tuple[Pictures, ReadsRows]:
    """Load a projector; return the registry of its pictures, and the model to use in place of the target.

    This model is the target, or GridPositions over the target. The target also gets a vocabulary that
    converts the placeholder of each picture in a prompt to the picture's ids.

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
    logger.info("  pictures %s, %s", path.name, projector.costs)
    return pictures, GridPositions(target) if projector.has_grids else target
