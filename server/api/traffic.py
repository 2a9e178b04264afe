"""Totals since the server started, counted from the engine's events, for /metrics."""

from __future__ import annotations

from collections import Counter

from server.engine.events import Committed, DrafterCount, Event, Failed, Finished, Started, Stats

MAX_SOURCES = 256
"""Drafters that tokens are counted for. Their names change with every restart, so there is no end of them."""


class Traffic:
    """An observer of the engine's events, to be read on their event loop. Counts only grow; the drafters not
    heard of for longest are dropped."""

    def __init__(self) -> None:
        self.n_prompt = 0  # prompt tokens evaluated
        self.n_cached = 0  # prompt tokens reused
        self.n_predicted = 0
        self.n_steps = 0
        self.n_drafted = 0
        self.n_accepted = 0
        self.prompt_s = 0.0
        self.predicted_s = 0.0
        self.endings: Counter[str] = Counter()
        self.sources: dict[str, DrafterCount] = {}
        self._unprompted: dict[int, Started] = {}  # generations without a token yet

    def __call__(self, id: int, event: Event) -> None:
        match event:
            case Started():
                self._unprompted[id] = event
            case Committed():
                if (started := self._unprompted.pop(id, None)) is not None:
                    self.n_prompt += started.n_prompt - started.n_cached
                    self.n_cached += started.n_cached
                self.n_steps += 1
                self.n_predicted += len(event.tokens)
                self.n_drafted += event.n_drafted
                self.n_accepted += len(event.sources) - event.sources.count(None)
            case Finished():
                self._unprompted.pop(id, None)
                self.endings[event.reason] += 1
                self._finish(event.stats)
            case Failed():
                self._unprompted.pop(id, None)
                self.endings["failed"] += 1

    def _finish(self, stats: Stats) -> None:
        self.prompt_s += stats.prompt_ms / 1e3
        self.predicted_s += stats.predicted_ms / 1e3
        for name, count in stats.drafters.items():
            known = self.sources.pop(name, DrafterCount())  # moves it to the end
            self.sources[name] = DrafterCount(known.drafted + count.drafted, known.accepted + count.accepted)
        while len(self.sources) > MAX_SOURCES:
            del self.sources[next(iter(self.sources))]
