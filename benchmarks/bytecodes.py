"""Count executed bytecodes instead of seconds: the counts are equal from run to run on any machine.

The counts can be compared between commits, not between versions of Python.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.prepared import Watch

_OURS = str(Path(__file__).parent)  # what stands for models and drafters here does not count


class BytecodeWatch(Watch):
    """A watch that counts bytecodes, which slows Python about tenfold; its clock moves by decodes alone."""

    def __init__(self) -> None:
        super().__init__()
        self._model_s, self._n = 0.0, 0

    def __call__(self) -> float:
        return self._model_s

    def hidden(self, work: Callable[[], object]) -> None:
        n_before = self._n
        work()
        self._n = n_before

    def decoded(self, spent_s: float, model_s: float) -> None:
        self._model_s += model_s

    def outside(self, work: Callable[[], object]) -> float:
        """Return how many bytecodes `work` executes in Python functions, except those of benchmarks.

        Garbage collection is off meanwhile: the rest of the process decides when it runs, and its callbacks
        would count. Calls may be nested.
        """
        n_before, before, collects = self._n, sys.gettrace(), gc.isenabled()
        gc.disable()
        sys.settrace(self._called)
        try:
            work()
        finally:
            sys.settrace(before)
            if collects:
                gc.enable()
        return float(self._n - n_before)

    def _called(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        if frame.f_code.co_filename.startswith(_OURS):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._traced

    def _traced(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
        self._n += event == "opcode"
        return self._traced
