"""Log how much of a model has been loaded, if loading takes long."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from server.stop_signals import stop_requested

logger = logging.getLogger("duo.loading")

EVERY_S = 5.0  # seconds between two lines. Half: a model that takes a minute to load writes 24 lines, not 12


class LoadProgress:
    """A callback that llama.cpp calls while it reads weights. Logs the progress; may stop the loading."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._clock = clock
        self._began = self._logged_at = clock()

    def __call__(self, share: float, _: object = None) -> bool:
        """Log `share`, the fraction of the weights that is read, at most every EVERY_S.

        Returns False, which stops the loading, if the process is to end.
        """
        now = self._clock()
        if now - self._logged_at >= EVERY_S and 0 < share < 1:
            self._logged_at = now
            left_s = (now - self._began) * (1 - share) / share
            logger.info("  loading  %s: %.0f %%, about %.0f s left", self._name, 100 * share, left_s)
        return not stop_requested()
