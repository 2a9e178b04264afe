"""Find and load files of heads, prediction blocks and assistants, which draft from a target's hidden rows."""

from __future__ import annotations

import logging
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TypeVar

from server.errors import StartupError
from server.llama.backend import PredictionBlock
from server.llama.dflash import DFlashHead
from server.llama.eagle3 import LlamaHead
from server.llama.hub import KINDS, FetchedModel
from server.llama.llamacpp import LlamaBackend
from server.llama.mtp import BlockFile
from server.llama.target_rows import TARGETS
from server.llama.tensors import ASSISTANTS, DFLASH, EAGLE3, architecture, has_block, is_block
from server.settings import LeadSettings
from server.speculation.wire.presence import mismatch, vocabulary_card

logger = logging.getLogger("duo.lead")

S = TypeVar("S", bound=LeadSettings)


def head_of(settings: LeadSettings) -> Path | None:
    """Return the draft model if it is an EAGLE-3, DFlash or DSpark head or a prediction block, else None.

    Raises StartupError if its file is missing.
    """
    path = settings.draft_model
    return path if path and (architecture(path) in (EAGLE3, DFLASH) or is_block(path)) else None


def assistant_of(settings: LeadSettings) -> Path | None:
    """Return the draft model if it is an assistant (assistant.py), else None.

    Raises StartupError if its file is missing.
    """
    path = settings.draft_model
    return path if path and architecture(path) in ASSISTANTS else None


def load_head(stack: ExitStack, path: Path, target: LlamaBackend, most: int) -> PredictionBlock:
    """Load a head, or a prediction block that has its own file.

    Args:
        stack: Closes the head.
        path: File of the head.
        target: Model that the head drafts for.
        most: Maximum guesses in a step; 0: no limit.

    Raises:
        StartupError: The head does not fit the target.
    """
    head = stack.enter_context(closing(_opened(path, target, most)))
    if reason := mismatch(vocabulary_card(target.vocab), vocabulary_card(head.vocab)):
        raise StartupError(f"{path} cannot draft for {target.name}: {reason}")
    instead = ", not the prediction block in the model's file" if target.model.n_blocks else ""
    logger.info("  draft    %s%s, in this process", head.what, instead)
    return head


def _opened(path: Path, target: LlamaBackend, most: int) -> LlamaHead | DFlashHead | BlockFile:
    kind = architecture(path)
    if kind == EAGLE3:
        return LlamaHead(target, path)
    return DFlashHead(target, path, most) if kind == DFLASH else BlockFile(target, path, most)


def with_head(settings: S, fetched: FetchedModel) -> S:
    """Return the settings, in which a head from the model's repository becomes the draft model if it fits.

    Logs which head drafts, and why the repository's other heads do not.
    """
    left = {kind: why for kind in fetched.heads if (why := _obstacle(settings, kind))}
    head: Path | None = None
    for kind in [kind for kind in KINDS if kind in fetched.heads and kind not in left]:
        if head is not None:
            left[kind] = "one is enough"
            continue
        try:
            head = _checked(fetched.fetch_beside(fetched.heads[kind]))
        except StartupError as error:
            left[kind] = error.message
    unused = ", ".join(f"{fetched.heads[kind][0]} ({why})" for kind, why in left.items())
    name = f"{head.name}, found beside the model" if head else "none"
    logger.info("  head     %s%s", name, f"; left out: {unused}" if unused else "")
    return settings.model_copy(update={"draft_model": head}) if head else settings


def _obstacle(settings: LeadSettings, kind: str) -> str:
    """Return why a head of this kind must not draft, "" if it may."""
    if settings.draft_model is not None:
        return "a draft model is given"
    if settings.mtp == "off" or not settings.draft_max:
        return "--mtp off" if settings.draft_max else "--draft-max 0"
    if has_block(settings.model):
        return "the model's file has a prediction block"
    if kind != "mtp" and architecture(settings.model) not in TARGETS:
        return "llama.cpp does not give the rows that it reads"
    return ""


def _checked(path: Path) -> Path:
    """Return the path. Raises StartupError if the file is no head, assistant or prediction block."""
    if architecture(path) in (EAGLE3, DFLASH, *ASSISTANTS) or is_block(path):
        return path
    raise StartupError("it is a model of its own")
